"""Models on disk: from what the user names to a folder that a runner can load."""
