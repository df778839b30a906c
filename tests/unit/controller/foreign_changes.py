"""What others do to a Deployment of ours: things added, and things added where ours was broken.

Each is a function on the pod's spec; the same tables are tried on a real API server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "hunter2"
POD = "spec.template.spec"
SERVER = f"{POD}.containers[server]"
SIZER = f"{POD}.initContainers[sizer]"


WIDE_ENV: list[dict[str, Any]] = [
    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    {
        "name": "C",
        "valueFrom": {"fileKeyRef": {"volumeName": "plimsoll", "path": "env", "key": "C"}},
    },
]
WIDE_VOLUMES: list[dict[str, Any]] = [
    {"name": "s", "secret": {"secretName": "s"}},
    {"name": "c", "configMap": {"name": "c"}},
    {"name": "d", "downwardAPI": {"items": []}},
    {"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
]


def widen(pod: dict[str, Any]) -> None:
    """Give the pod what an API server fills in and we do not render (yet)."""
    del pod["securityContext"]
    pod["volumes"] += WIDE_VOLUMES
    del _sizer(pod)["resources"]
    _sizer(pod)["env"] += WIDE_ENV
    _server(pod).update(
        ports=[{"containerPort": 8000}],
        startupProbe={"httpGet": {"port": 8000}},
        readinessProbe={"grpc": {"port": 8000}},
        livenessProbe={"tcpSocket": {"port": 8000}},
    )


class Change(NamedTuple):
    """What somebody does to the pod's spec, and the names under which it is told."""

    do: Callable[[dict[str, Any]], object]
    names: tuple[str, ...]


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """One of the pod's containers."""
    found = [*pod["containers"], *pod.get("initContainers", ())]
    one: dict[str, Any]
    (one,) = (c for c in found if c["name"] == name)
    return one


def _server(pod: dict[str, Any]) -> dict[str, Any]:
    return container(pod, "server")


def _sizer(pod: dict[str, Any]) -> dict[str, Any]:
    return container(pod, "sizer")


def _sidecar(name: str = "mesh") -> dict[str, Any]:
    return {"name": name, "image": "localhost/mesh:1", "env": [{"name": "K", "value": SECRET}]}


def _pod(**fields: Any) -> Change:
    return Change(lambda pod: pod.update(fields), tuple(f"{POD}.{name}" for name in fields))


def _account(pod: dict[str, Any]) -> None:
    pod |= {"serviceAccountName": "admin", "serviceAccount": "admin"}


def _host_path(pod: dict[str, Any]) -> None:
    pod["volumes"].append({"name": "host", "hostPath": {"path": "/", "type": ""}})
    _server(pod)["volumeMounts"].insert(0, {"name": "host", "mountPath": "/host"})


def _devices(pod: dict[str, Any]) -> None:
    _server(pod).setdefault("env", []).append({"name": "NVIDIA_VISIBLE_DEVICES", "value": SECRET})


def _sizer_env(pod: dict[str, Any]) -> None:
    _sizer(pod)["env"][1:1] = [{"name": "A", "value": SECRET}, {"name": "B", "value": SECRET}]


def _limits(pod: dict[str, Any]) -> None:
    _sizer(pod)["resources"]["limits"]["cpu"] = "1"
    _server(pod)["resources"]["requests"]["cpu"] = "100m"


def _restarts(pod: dict[str, Any]) -> None:
    _sizer(pod)["restartPolicy"] = "Always"
    _sizer(pod)["livenessProbe"] = {"exec": {"command": ["true"]}}


def _listen(pod: dict[str, Any]) -> None:
    _server(pod)["ports"].insert(0, {"containerPort": 22, "protocol": "TCP"})


def _post_start(pod: dict[str, Any]) -> None:
    _server(pod)["lifecycle"]["postStart"] = {"exec": {"command": ["true"]}}


def _two_sidecars(pod: dict[str, Any]) -> None:
    pod["containers"].insert(0, _sidecar("one"))
    pod["containers"].append(_sidecar("two"))


def _name_servers(pod: dict[str, Any]) -> None:
    pod |= {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}}


def _host(pod: dict[str, Any]) -> None:
    pod["hostNetwork"] = True
    for port in _server(pod)["ports"]:
        port["hostPort"] = port["containerPort"]


def _doubled_before(pod: dict[str, Any]) -> None:
    _sizer(pod)["env"].insert(0, {"name": "PLIMSOLL_STAMPED_TOKENS", "value": SECRET})


ADDITIONS: dict[str, Change] = {
    "a sidecar": Change(
        lambda pod: pod["containers"].append(_sidecar()), (f"{POD}.containers[mesh]",)
    ),
    "sidecars around ours": Change(
        _two_sidecars, (f"{POD}.containers[two]", f"{POD}.containers[one]")
    ),
    "an init container": Change(
        lambda pod: pod["initContainers"].insert(0, _sidecar()), (f"{POD}.initContainers[mesh]",)
    ),
    "devices": Change(_devices, (f"{SERVER}.env[NVIDIA_VISIBLE_DEVICES]",)),
    "variables amid ours": Change(_sizer_env, (f"{SIZER}.env[B]", f"{SIZER}.env[A]")),
    "env from a secret": Change(
        lambda pod: _server(pod).update(envFrom=[{"secretRef": {"name": "s"}}]),
        (f"{SERVER}.envFrom",),
    ),
    "a host path": Change(_host_path, (f"{SERVER}.volumeMounts[/host]", f"{POD}.volumes[host]")),
    "a port": Change(_listen, (f"{SERVER}.ports[22]",)),
    "resources": Change(
        _limits, (f"{SIZER}.resources.limits.cpu", f"{SERVER}.resources.requests.cpu")
    ),
    "a liveness probe": Change(
        lambda pod: _server(pod).update(livenessProbe={"tcpSocket": {"port": "http"}}),
        (f"{SERVER}.livenessProbe",),
    ),
    "a probe's host": Change(
        lambda pod: _server(pod)["readinessProbe"]["httpGet"].update(host="1.1.1.1"),
        (f"{SERVER}.readinessProbe.httpGet.host",),
    ),
    "a post-start hook": Change(_post_start, (f"{SERVER}.lifecycle.postStart",)),
    "a sizer that is a sidecar": Change(
        _restarts, (f"{SIZER}.restartPolicy", f"{SIZER}.livenessProbe")
    ),
    "another termination message": Change(
        lambda pod: _sizer(pod).update(terminationMessagePath="/tmp/x"),
        (f"{SIZER}.terminationMessagePath",),
    ),
    "a container's security": Change(
        lambda pod: _server(pod)["securityContext"].update(runAsUser=1234, runAsGroup=0),
        (f"{SERVER}.securityContext.runAsUser", f"{SERVER}.securityContext.runAsGroup"),
    ),
    "the pod's security": Change(
        lambda pod: pod["securityContext"].update(sysctls=[{"name": "net.x", "value": "1"}]),
        (f"{POD}.securityContext.sysctls",),
    ),
    "a working directory": Change(
        lambda pod: _server(pod).update(workingDir="/tmp", stdin=True),
        (f"{SERVER}.workingDir", f"{SERVER}.stdin"),
    ),
    "a node selector": _pod(nodeSelector={"theirs": "x"}),
    "a toleration": _pod(tolerations=[{"key": "spot", "operator": "Exists"}]),
    "the host's network": Change(_host, (f"{POD}.hostNetwork", f"{SERVER}.ports[8000].hostPort")),
    "a second number before ours": Change(
        _doubled_before, (f"{SIZER}.env[PLIMSOLL_STAMPED_TOKENS]",)
    ),
    "host processes": _pod(hostPID=True, hostIPC=True),
    "a user namespace": _pod(hostUsers=False),
    "shared processes": _pod(shareProcessNamespace=True),
    "a host name": _pod(hostname="h", subdomain="s", setHostnameAsFQDN=True),
    "host aliases": Change(
        lambda pod: pod.update(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a"]}]),
        (f"{POD}.hostAliases",),
    ),
    "another scheduler": _pod(schedulerName="theirs"),
    "a node": _pod(nodeName="node-a"),
    "a gate": Change(
        lambda pod: pod.update(schedulingGates=[{"name": "x.y/z"}]), (f"{POD}.schedulingGates",)
    ),
    "a class": _pod(runtimeClassName="kata", priorityClassName="high"),
    "preemption": _pod(preemptionPolicy="Never"),
    "an account": Change(_account, (f"{POD}.serviceAccountName", f"{POD}.serviceAccount")),
    "a pull secret": Change(
        lambda pod: pod.update(imagePullSecrets=[{"name": "s"}]), (f"{POD}.imagePullSecrets[s]",)
    ),
    "name servers": Change(_name_servers, (f"{POD}.dnsPolicy", f"{POD}.dnsConfig")),
    "spreading": Change(
        lambda pod: pod.update(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        ),
        (f"{POD}.topologySpreadConstraints[zone]",),
    ),
    "another pod's neighbour": Change(
        lambda pod: pod["affinity"].update(
            podAffinity={
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]
            }
        ),
        (f"{POD}.affinity.podAffinity",),
    ),
}


def _other_source(pod: dict[str, Any]) -> None:
    pod["volumes"][0] = {"name": "model", "hostPath": {"path": "/models", "type": ""}}


def _other_mount(pod: dict[str, Any]) -> None:
    pod["volumes"].append({"name": "mine", "emptyDir": {}})
    _server(pod)["volumeMounts"][1]["name"] = "mine"


def _no_source(pod: dict[str, Any]) -> None:
    pod["volumes"][1] = {"name": "plimsoll", "configMap": {"name": "c", "defaultMode": 420}}


def _other_port(pod: dict[str, Any]) -> None:
    _server(pod)["ports"][0]["containerPort"] = 9999


def _other_handler(pod: dict[str, Any]) -> None:
    probe = _server(pod)["readinessProbe"]
    del probe["httpGet"]
    probe["exec"] = {"command": ["true"]}


def _other_hook(pod: dict[str, Any]) -> None:
    pod["terminationGracePeriodSeconds"] = 2
    _server(pod)["lifecycle"] = {
        "preStop": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTP"}}
    }


def _other_uid(pod: dict[str, Any]) -> None:
    (entry,) = (e for e in _sizer(pod)["env"] if e["name"] == "PLIMSOLL_POD_UID")
    del entry["valueFrom"]
    entry["value"] = SECRET


def _doubled(pod: dict[str, Any]) -> None:
    _sizer(pod)["env"].append({"name": "PLIMSOLL_STAMPED_TOKENS", "value": SECRET})


def _replaced(pod: dict[str, Any]) -> None:
    pod["containers"] = [_sidecar("theirs")]


DAMAGE: dict[str, Change] = {
    "another source of the model": Change(_other_source, (f"{POD}.volumes[model].hostPath",)),
    "another kind of scratch folder": Change(_no_source, (f"{POD}.volumes[plimsoll].configMap",)),
    "a mount of a foreign volume": Change(_other_mount, (f"{POD}.volumes[mine]",)),
    "another port of that name": Change(_other_port, (f"{SERVER}.ports[9999]",)),
    "another probe": Change(_other_handler, (f"{SERVER}.readinessProbe.exec",)),
    "another hook and no time for ours": Change(
        _other_hook, (f"{SERVER}.lifecycle.preStop.httpGet",)
    ),
    "a pod that lies about its uid": Change(
        _other_uid, (f"{SIZER}.env[PLIMSOLL_POD_UID].value",)
    ),
    "a second number after ours": Change(
        _doubled, (f"{SIZER}.env[PLIMSOLL_STAMPED_TOKENS]",)
    ),
    "another container in place of ours": Change(_replaced, (f"{POD}.containers[theirs]",)),
}  # fmt: skip
