"""The HTTP interface against its own description and OpenAI's: `make conformance`."""
