"""
The manifests in deploy/: valid by the schemas of Kubernetes, JobSet and Kubeflow Trainer, and safe by their
content.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from groups import ROOT

MISSING = [
    name
    for name in ("yaml", "kubernetes_validate", "kubeflow_trainer_api")
    if importlib.util.find_spec(name) is None
]
if MISSING:
    pytest.skip(
        f"the manifests were NOT validated: {', '.join(MISSING)} missing; pip install 'penstock-ps[deploy]'",
        allow_module_level=True,
    )

import yaml  # noqa: E402 (it may be missing)

FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.32"
TYPED = {
    "JobSet": "JobsetV1alpha2JobSet",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.name}:{document['kind']}", document)
        for path in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


DOCUMENTS = documents()


def lost(given: Any, kept: Any, where: str = "") -> list[str]:
    """What stands in `given` and not in `kept`: fields that the schema does not know."""
    if isinstance(given, dict):
        if not isinstance(kept, dict):
            return [where]
        return [
            one
            for name, value in given.items()
            for one in (
                [f"{where}.{name}"] if name not in kept else lost(value, kept[name], f"{where}.{name}")
            )
        ]
    if isinstance(given, list):
        if not isinstance(kept, list) or len(given) != len(kept):
            return [where]
        pairs = enumerate(zip(given, kept, strict=True))
        return [one for index, (mine, theirs) in pairs for one in lost(mine, theirs, f"{where}[{index}]")]
    return []


def check(document: dict[str, Any]) -> list[str]:
    """What is wrong with a document by its schema."""
    kind = document["kind"]
    if kind not in TYPED:
        import kubernetes_validate

        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error.message)]
        return []
    from kubeflow_trainer_api import models

    try:
        model = getattr(models, TYPED[kind]).from_dict(document)
    except ValueError as error:
        return [str(error)]
    return lost(document, model.to_dict())


@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_a_manifest_is_valid_by_its_schema(name: str, document: dict[str, Any]) -> None:
    assert check(document) == []


@pytest.mark.parametrize("kind", ["Deployment", *TYPED])
def test_the_schemas_find_a_field_that_is_none(kind: str) -> None:
    document = next(document for _, document in DOCUMENTS if document["kind"] == kind)
    assert check({**document, "spec": {**document["spec"], "replikas": 3}})


def pods(document: Any) -> Iterator[dict[str, Any]]:
    """All pod specifications within a document."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)


PODS = [(name, pod) for name, document in DOCUMENTS for pod in pods(document)]


@pytest.mark.parametrize(("name", "pod"), PODS, ids=[name for name, _ in PODS])
def test_no_pod_runs_as_root_or_without_a_limit_of_its_memory(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]


def test_every_long_lived_pod_is_probed() -> None:
    deployments = [document for _, document in DOCUMENTS if document["kind"] == "Deployment"]
    assert len(deployments) == 2
    for document in deployments:
        for container in document["spec"]["template"]["spec"]["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize(("name", "pod"), PODS, ids=[name for name, _ in PODS])
def test_no_secret_stands_in_a_manifest_or_on_a_command_line(name: str, pod: dict[str, Any]) -> None:
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        for variable in container.get("env", []):
            if variable["name"].endswith(("SECRET", "TOKEN")):
                assert "secretKeyRef" in variable["valueFrom"], variable
        words = [*container.get("command", []), *container.get("args", [])]
        assert not any("secret" in word.lower() for word in words), words


def test_the_commands_of_the_pods_are_ones_that_penstock_has() -> None:
    from penstock.cli.main import COMMANDS

    for _, pod in PODS:
        for container in pod["containers"]:
            if "command" not in container:
                assert container["args"][0] in COMMANDS
            elif container["command"][0] in ("python", "torchrun"):
                assert (ROOT / Path(container["command"][1]).relative_to("/")).exists()


def test_the_options_of_manager_and_server_pods_are_theirs() -> None:
    from penstock.cli import manager, server

    parsers = {"manager": manager.parser(), "server": server.parser()}
    seen = []
    for _, pod in PODS:
        for container in pod["containers"]:
            name, *options = container.get("args", [""])
            if name in parsers:
                parsers[name].parse_args(options)  # raises for an option that does not exist
                seen.append(name)
    assert sorted(seen) == ["manager", "server"]
