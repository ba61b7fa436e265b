"""Print the reference of the service's API as Markdown, from the code of the service.

python tools/api.py routes      all routes, from the OpenAPI document of create_app
python tools/api.py objects     the JSON objects in responses
python tools/api.py problems    all problems that a response may report
python tools/api.py metrics     the table of metrics
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from checkins.protocol import wire
from checkins.service.app import create_app
from checkins.service.http.problems import PROBLEM_TYPES
from checkins.service.metrics import Metrics
from checkins.service.settings import Enrolment, Settings

OPERATIONS = ("get", "put", "post", "delete")
PREFIX = "#/components/schemas/"


def document() -> dict[str, Any]:
    """Return the OpenAPI document. The database in the settings is never opened."""
    settings = Settings(
        store="sqlite:///never-opened.db",
        enrolment=Enrolment.open(),
        operator_token="never-used-by-anyone",
    )
    return create_app(settings).openapi()


def routes(api: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of all routes, and a section for each route."""
    found = [
        (f"{name.upper()} {path}", operation)
        for path, operations in api["paths"].items()
        for name, operation in operations.items()
        if name in OPERATIONS
    ]
    yield from _table(
        ("route", "credential", "what it does"),
        [
            (f"[`{name}`](#{_anchor(name)})", _credential(operation), operation["summary"])
            for name, operation in found
        ],
    )
    everywhere = anywhere(api)
    yield from (
        f"Every route may also respond with {', '.join(f'`{slug}`' for slug in everywhere)}.",
        "",
    )
    schemes = api["components"]["securitySchemes"]
    for name, operation in found:
        yield from _route(name, operation, schemes, everywhere)


def anywhere(api: Mapping[str, Any]) -> list[str]:
    """Return the problems that every route may respond with."""
    named = [
        set(slugs_of(operation))
        for operations in api["paths"].values()
        for name, operation in operations.items()
        if name in OPERATIONS
    ]
    return [slug for slug in PROBLEM_TYPES if all(slug in slugs for slugs in named)]


def slugs_of(operation: Mapping[str, Any]) -> list[str]:
    """Return the problems that a route may respond with."""
    return [
        kind.removeprefix(wire.PROBLEM_URN)
        for answer in operation["responses"].values()
        if wire.PROBLEM_TYPE in answer.get("content", {})
        for kind in answer["content"][wire.PROBLEM_TYPE]["schema"]["properties"]["type"]["enum"]
    ]


def _route(
    name: str,
    operation: Mapping[str, Any],
    schemes: Mapping[str, Any],
    everywhere: Sequence[str],
) -> Iterator[str]:
    yield from (f"### {name}", "")
    said = " ".join(str(operation.get("description", "")).split())
    yield from (f"{operation['summary']}. {said}".rstrip(), "")
    for wanted in operation.get("security", ()):
        for scheme in wanted:
            yield from (
                f"Credential, as `Authorization: Bearer`: {schemes[scheme]['description']}.",
                "",
            )
    parameters = [
        (f"`{one['name']}`", one["in"], _value(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if parameters:
        yield from _table(("parameter", "in", "value", "meaning"), parameters)
    for kind in operation.get("requestBody", {}).get("content", {}):
        yield from (f"Body: `{kind}`.", "")
    answers = [
        # FastAPI's default description is "Successful Response".
        (status, _content(content), answer["description"].replace("Successful Response", ""))
        for status, answer in sorted(operation["responses"].items())
        if wire.PROBLEM_TYPE not in (content := answer.get("content", {}))
    ]
    problems = [
        (f"`{slug}`", str(PROBLEM_TYPES[slug].status), PROBLEM_TYPES[slug].title)
        for slug in slugs_of(operation)
        if slug not in everywhere or f"`{slug}`" in said  # a problem that the text names is listed
    ]
    yield from _table(("status", "body", "meaning"), answers)
    if problems:
        yield from _table(("problem", "status", "meaning"), problems)


def objects(api: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section for each JSON object in responses."""
    for name, schema in api["components"]["schemas"].items():
        if "Error" in name:
            continue  # an error of the framework that no route returns
        yield from (f"### {name}", "")
        if "description" in schema:
            yield from (" ".join(schema["description"].split()), "")
        rows = [
            (f"`{key}`", _value(value), value.get("description", ""))
            for key, value in schema["properties"].items()
        ]
        yield from _table(("field", "value", "meaning"), rows)


def problems(_: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of all problems with status and title."""
    rows = [(f"`{slug}`", str(kind.status), kind.title) for slug, kind in PROBLEM_TYPES.items()]
    yield from _table(("slug", "status", "title"), rows)


def metrics_table(_: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of all Prometheus metrics."""
    rows = [
        (f"`{name}`", kind.__name__.lower(), ", ".join(labels), meaning)
        for kind, name, labels, meaning in Metrics().descriptions
    ]
    yield from _table(("metric", "kind", "labels", "meaning"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _credential(operation: Mapping[str, Any]) -> str:
    names = [name for wanted in operation.get("security", ()) for name in wanted]
    return names[0] if names else "–"


def _content(content: Mapping[str, Any]) -> str:
    shown = []
    for kind, value in content.items():
        schema = value.get("schema", {})
        is_object = "$ref" in schema or "anyOf" in schema
        shown.append(_value(schema) if is_object else f"`{kind}`")
    return ", ".join(shown) or "none"


def _value(schema: Mapping[str, Any]) -> str:
    """Return a short description of the values that a schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_value(one) for one in schema["anyOf"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        return ", ".join(f'`"{one}"`' for one in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_value(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_value(schema['additionalProperties'])}"
    if "pattern" in schema:
        kind += f" `{schema['pattern']}`"
    if "minimum" in schema and "maximum" in schema:
        kind += f", {schema['minimum']:,} to {schema['maximum']:,}"
    if "minLength" in schema and "maxLength" in schema:
        kind += f", {schema['minLength']} to {schema['maxLength']} characters"
    if "default" in schema:
        kind += f", default {schema['default']}"
    return kind


PARTS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "routes": routes,
    "objects": objects,
    "problems": problems,
    "metrics": metrics_table,
}


def rendered(part: str) -> str:
    """Return one part of the reference as Markdown."""
    lines = PARTS[part](document())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    print(rendered(parser.parse_args().part))


if __name__ == "__main__":
    main()
