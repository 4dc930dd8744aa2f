"""Reads a part of a manifest by its model, and says what is wrong with its fields and what to write instead."""

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.manifests.kuberay_models import FieldProblem
from tune_policies.values.value import shorten

_WHOLE = "-?(0|[1-9][0-9]{0,18})"  # 010 may be 8, and no count has more digits

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def read_part(model: type[_ModelT], data: object) -> tuple[_ModelT | None, list[FieldProblem]]:
    """Return a part as its model has it, and what is wrong with it by where it stands in the part.

    What only lacks its quotes is a problem, but is read as the text, so that what else is wrong shows too; with any
    other problem there is no part.
    """
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors()]
        texts = {tuple(detail["loc"]) for detail in error.errors() if _is_unquoted(detail) or _is_fraction(detail)}
        if len(texts) < len(problems):
            return None, problems
        return read_part(model, _with_texts(data, texts, ()))[0], problems


def _is_unquoted(detail: Any) -> bool:
    return detail["type"] == "string_type" and isinstance(detail["input"], int | float)


def _is_fraction(detail: Any) -> bool:
    """Return whether it is an amount that only lacks its quotes, as ``cpu: 0.5``."""
    return detail["type"] == "value_error" and isinstance(detail["input"], float)


def _with_texts(data: Any, texts: set[Path], path: Path) -> Any:
    if path in texts:
        return json.dumps(data)
    if isinstance(data, dict):
        return {key: _with_texts(value, texts, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_texts(value, texts, (*path, number)) for number, value in enumerate(data)]
    return data


def _problem(detail: Any) -> FieldProblem:
    return FieldProblem(path=detail["loc"], message=f"{_name(detail['loc'])} {_explain(detail)}")


def _name(path: Path) -> str:
    names = [str(part) for part in path if isinstance(part, str)]
    return names[-1] if names else "the document"


def _explain(detail: Any) -> str:
    got = shorten(detail["input"])
    match detail["type"]:
        case "missing":
            return "is missing"
        case "string_type" if _is_unquoted(detail):
            what = "truth value" if isinstance(detail["input"], bool) else "number"
            return f'must be a text, got the {what} {got}: write "{json.dumps(detail["input"])}", in quotes'
        case "string_type":
            return f"must be a text, got {got}"
        case "int_type" if isinstance(detail["input"], str) and re.fullmatch(_WHOLE, detail["input"]):
            return f"must be a whole number, got the text {got}: leave the quotes out"
        case "int_type" | "int_from_float":
            return f"must be a whole number, got {got}"
        case "bool_type":
            return f"must be true or false, got {got}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a mapping, got {got}"
        case "list_type":
            return f"must be a list, got {got}"
        case "too_short":
            return "must have at least one entry"
        case "value_error":
            return str(detail["ctx"]["error"])
        case _:
            return f"{detail['msg'].lower()}, got {got}"
