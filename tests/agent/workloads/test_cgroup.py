"""A process is in the pod that its cgroup says, whatever made the path, and whoever writes below it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.workloads.cgroup import pod_uid

UID = "1f0c3c5e-9d3b-4a8e-8d5a-2b1f0e6c7d8e"
OTHER = "ffffffff-9d3b-4a8e-8d5a-2b1f0e6c7d8e"
STATIC = "4d3a1c5b9e8f7a6b5c4d3e2f1a0b9c8d"
ID = "c" * 64


def escaped(uid: str) -> str:
    return uid.replace("-", "_")


def slices(uid: str, qos: str, top: str = "") -> str:
    """As the kubelet's systemd driver names it."""
    base = f"{top}kubepods"
    within = f"/{base}-{qos}.slice" if qos else ""
    middle = f"-{qos}" if qos else ""
    return f"/{base}.slice{within}/{base}{middle}-pod{escaped(uid)}.slice"


PATHS = {
    "cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs, guaranteed": f"/kubepods/pod{UID}/{ID}",
    "cgroupfs, a root of its own": f"/custom/kubepods/besteffort/pod{UID}/{ID}",
    "systemd, containerd": f"{slices(UID, 'burstable')}/cri-containerd-{ID}.scope",
    "systemd, cri-o": f"{slices(UID, 'besteffort')}/crio-{ID}.scope",
    "systemd, cri-o's own below": f"{slices(UID, 'besteffort')}/crio-{ID}.scope/container",
    "systemd, docker": f"{slices(UID, '')}/docker-{ID}.scope",
    "containerd with the other driver": f"/kubepods-burstable-pod{escaped(UID)}.slice:cri-containerd:{ID}",
    "containerd under system.slice": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{escaped(UID)}.slice"
        f":cri-containerd:{ID}"
    ),
    "kind": f"/kubelet.slice{slices(UID, 'burstable', 'kubelet-')}/cri-containerd-{ID}.scope",
    "kind, its own container first": (
        f"/docker/{ID}/kubelet.slice{slices(UID, '', 'kubelet-')}/cri-containerd-{ID}.scope"
    ),
    "minikube": f"/docker/{ID}/kubepods/besteffort/pod{UID}/{ID}",
    "from another cgroup namespace": (
        f"/../../kubepods-besteffort.slice/kubepods-besteffort-pod{escaped(UID)}.slice"
        f"/cri-containerd-{ID}.scope"
    ),
    "from another cgroup namespace, cgroupfs": f"/../../besteffort/pod{UID}/{ID}",
}
NONE = {
    "a login": "/user.slice/user-1000.slice/session-3.scope",
    "a service": "/system.slice/evacd.service",
    "the root": "/",
    "docker alone": f"/docker/{ID}",
    "podman": f"/machine.slice/libpod-{ID}.scope",
    "podman's pod": f"/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope",
    "no uid": "/kubepods/burstable/podcast/x",
    "the kubelet itself": "/system.slice/kubelet.service",
    "a user who calls it so": f"/user.slice/user-7.slice/user@7.service/kubepods/pod{UID}/{ID}",
    "a service that calls it so": f"/system.slice/web.service{slices(UID, '')}/docker-{ID}.scope",
    "podman's that calls it so": f"/machine.slice/libpod-{ID}.scope/kubepods/pod{UID}",
    "a user, from another cgroup namespace": f"/../../../user.slice/user-7.slice/pod{UID}/{ID}",
    "our own pod, from within": f"/../cri-containerd-{ID}.scope",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_pod_is_found_under_v2(path: str) -> None:
    assert pod_uid(f"0::{path}\n") == UID


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_pod_is_found_under_v1_and_hybrid(path: str) -> None:
    lines = ["12:memory:" + path, "4:cpu,cpuacct:" + path, "1:name=systemd:" + path, "0::/"]
    assert pod_uid("\n".join(lines)) == UID


@pytest.mark.parametrize("path", NONE.values(), ids=NONE)
def test_what_is_in_no_pod_is_in_none(path: str) -> None:
    assert pod_uid(f"0::{path}\n") is None


def test_a_pod_that_runs_from_a_file_has_a_hash_for_a_uid() -> None:
    assert pod_uid(f"0::{slices(STATIC, 'burstable')}/crio-{ID}.scope\n") == STATIC


def test_controllers_that_disagree_are_not_believed() -> None:
    text = f"4:memory:/kubepods/pod{UID}/{ID}\n3:cpu:/kubepods/pod{OTHER}/{ID}\n"
    assert pod_uid(text) is None


NAMES = st.text(st.characters(exclude_characters="/\n", exclude_categories=["Cs"]), min_size=1)
FORGED = st.sampled_from([f"pod{OTHER}", f"kubepods-pod{escaped(OTHER)}.slice", "kubepods", ".."])


@given(st.sampled_from(list(PATHS.values())), st.lists(NAMES | FORGED, max_size=6))
def test_nothing_below_changes_whose_it_is(path: str, below: list[str]) -> None:
    assert pod_uid(f"0::{'/'.join([path, *below])}\n") == UID


@given(st.text())
def test_any_text_gives_a_uid_or_none(text: str) -> None:
    assert pod_uid(text) is None


@given(st.uuids(), st.sampled_from(["", "burstable", "besteffort"]), st.text("abcdef0123456789"))
def test_every_uid_is_found_whatever_the_quality_and_container(
    uid: object, qos: str, id: str
) -> None:
    assert pod_uid(f"0::{slices(str(uid), qos)}/cri-containerd-{id}.scope\n") == str(uid)
    within = f"/{qos}" if qos else ""
    assert pod_uid(f"0::/kubepods{within}/pod{uid}/{id}\n") == str(uid)
