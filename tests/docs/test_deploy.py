"""The container recipe and its manifests: they agree with the program and with one another."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from durastreamd.config.loading import read
from durastreamd.config.settings import Config
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

DEPLOY = ROOT / "deploy"
CHECKPOINT_S = 30  # what stopping may take beyond draining


def said(word: str) -> list[str]:
    """Return what the last stage of the recipe says with an instruction."""
    stage = (DEPLOY / "Containerfile").read_text().split("\nFROM ")[-1]
    return re.findall(rf"(?m)^{word} (.*)$", stage)


def configured(more: dict[str, str]) -> Config:
    variables = dict(line.split("=", 1) for line in said("ENV"))
    return read(None, {**variables, **more}, []).config


def loaded(name: str) -> Any:
    """Return the documents of a file, read by a parser of YAML."""
    tool = shutil.which("yq")
    if tool is None:
        pytest.skip("yq is not installed")
    command = [tool, "-s", ".", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    (found,) = loaded("compose.yml")
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {found["kind"]: found for found in loaded("kubernetes.yml")}


def test_the_image_listens_and_keeps_its_data_where_it_says() -> None:
    config, (port,), (volume,) = configured({}), said("EXPOSE"), said("VOLUME")
    assert config.server.listen == (f"0.0.0.0:{port}",)
    assert read(None, {}, []).config.server.listen == (f"127.0.0.1:{port}",)
    assert config.server.data_dir.startswith(f"{volume}/")
    (program,) = json.loads(said("ENTRYPOINT")[0])
    assert said("COPY")[-1].split()[-1] == program
    assert json.loads(said("RUN")[0])[0] == program


def test_the_compose_file_fits_the_image(compose: dict[str, Any]) -> None:
    server = compose["services"]["durastreamd"]
    build = server["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    (port,), (volume,) = said("EXPOSE"), said("VOLUME")
    assert server["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert server["volumes"] == [f"{next(iter(compose['volumes']))}:{volume}"]
    (secret,) = server["secrets"]
    config = configured(server["environment"])
    assert config.access.tokens_file == f"/run/secrets/{secret}"
    assert compose["secrets"][secret] == {"file": "./tokens"}
    grace_s = float(server["stop_grace_period"].removesuffix("s"))
    assert grace_s >= config.server.drain_s + CHECKPOINT_S


def test_the_objects_of_kubernetes_fit_the_image(objects: dict[str, Any]) -> None:
    stateful = objects["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    (port,), (volume,), (user,) = said("EXPOSE"), said("VOLUME"), said("USER")
    assert container["ports"] == [{"name": "http", "containerPort": int(port)}]
    identity = pod["securityContext"]
    assert f"{identity['runAsUser']}:{identity['runAsGroup']}" == user
    assert identity["fsGroup"] == identity["runAsGroup"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (claim,) = stateful["volumeClaimTemplates"]
    assert mounts.pop(claim["metadata"]["name"]) == volume
    config = configured({entry["name"]: entry["value"] for entry in container["env"]})
    assert config.access.tokens_file == f"{mounts.pop(pod['volumes'][0]['name'])}/tokens"
    assert not mounts
    assert pod["terminationGracePeriodSeconds"] >= config.server.drain_s + CHECKPOINT_S
    memory = config.writes.in_flight_bytes_max + config.engine.hot_bytes_max
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert memory == 320 * 2**20  # as the manifest says


def test_the_service_finds_the_pod(objects: dict[str, Any]) -> None:
    service, stateful = objects["Service"], objects["StatefulSet"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == stateful["selector"]["matchLabels"] == labels
    assert stateful["serviceName"] == service["metadata"]["name"]
    assert stateful["replicas"] == 1
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (int(said("EXPOSE")[0]), "http")


@pytest.mark.system
def test_probes_need_no_token_and_metrics_the_one_of_the_page(
    objects: dict[str, Any], tmp_path: Path
) -> None:
    (container,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {"http"}
    page = (ROOT / "docs" / "deploy.md").read_text()
    (words,) = set(re.findall(r"--gen-token (prometheus [^`\s]+)", page))
    daemon = Daemon(tmp_path)
    made = subprocess.run(
        [*daemon.command()[:3], "--gen-token", *words.split()],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    (tmp_path / "tokens").write_text(made.stdout)
    daemon.settings["access.tokens_file"] = tmp_path / "tokens"
    with daemon:
        for probe in probes:
            answer = httpx.get(daemon.url + probe["path"], headers={"Host": "10.1.2.3:4437"})
            assert answer.status_code == 200, probe
        metrics = f"{daemon.url}/-/metrics"
        assert httpx.get(metrics).status_code == 401
        token = {"Authorization": f"Bearer {made.stderr.split()[-1]}"}
        assert httpx.get(metrics, headers=token).status_code == 200


def test_the_page_names_every_file_of_the_kit() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name in page, path
