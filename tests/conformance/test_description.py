"""What the server does is what `/openapi` says."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from api.app import ROUTES
from api.openapi import document

PAST_AN_END = {"position_out_of_range", "context_length_exceeded"}

schema = schemathesis.openapi.from_dict(document(ROUTES))


@schema.parametrize()
def test_answers_are_as_described(case: Case[Any], url: str, model: str) -> None:
    if isinstance(case.body, dict) and case.body.get("messages"):
        # Nothing is learnt from hundreds of unknown models, or from long answers.
        if isinstance(case.body.get("model"), str) and case.body["model"]:
            case.body["model"] = model
        case.body.setdefault("max_tokens", 4)
    response = case.call(base_url=url)
    # Where the log and a context end is for the server to say, not for the description.
    past = response.status_code == 400 and response.json()["error"]["code"] in PAST_AN_END
    case.validate_response(response, excluded_checks=[positive_data_acceptance] if past else [])
