"""The roles of an app: what each runs, and the mesh of hosts that it runs on.

No I/O. An app has the shape of a TorchX AppDef; TorchX need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Role(msgspec.Struct, frozen=True):
    """A torchrun command, without the word torchrun, on a mesh of hosts.

    `mesh` is empty for the only role of a job: it runs on the mesh `workers`, or else the first.
    """

    mesh: str
    command: list[str]
    env: dict[str, str] = {}


class RoleRequest(msgspec.Struct, frozen=True):
    """A role of an AppDef. `resource`: what each replica asks for, by the option of Slurm for it.

    A `name` is empty if the app has no other role.
    """

    name: str
    words: list[str]
    env: dict[str, str] = {}
    replicas: int = 1
    resource: dict[str, int | str] = {}


def requests_of(appdef: Any) -> list[RoleRequest]:
    """The roles of an AppDef.

    Raises:
        ValueError: it has no role, two of one name, or a field that has no meaning here.
    """
    roles: list[Any] = list(appdef.roles)
    if not roles:
        raise ValueError("the AppDef has no role; give one with an entrypoint and args")
    names = [str(getattr(role, "name", "")) for role in roles]
    for name in names if len(names) > 1 else ():
        if not name.isidentifier() or name.startswith("_"):
            usable = "".join(c if c.isalnum() else "_" for c in name).strip("_") or "trainer"
            raise ValueError(
                f"the role {name!r} cannot name a mesh of hosts; use an identifier, such as "
                f"{usable if usable.isidentifier() else 'trainer'}"
            )
        if names.count(name) > 1:
            raise ValueError(f"the AppDef has {names.count(name)} roles {name!r}; name each once")
    return [
        _request(name if len(roles) > 1 else "", name, role)
        for name, role in zip(names, roles, strict=True)
    ]


def _request(mesh: str, name: str, role: Any) -> RoleRequest:
    what = f"the role {name!r}" if name else "the role"
    replicas = getattr(role, "num_replicas", 1)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise ValueError(f"{what} has num_replicas={replicas!r}; a role has 1 or more")
    if retries := getattr(role, "max_retries", 0):
        raise ValueError(
            f"{what} has max_retries={retries}, which only a scheduler of TorchX heeds; give "
            f"--max-restarts {retries} to its torchrun"
        )
    if getattr(role, "mounts", None):
        raise ValueError(
            f"{what} has mounts, which only containers have; leave them out, and give paths of "
            "the hosts"
        )
    env = {str(key): str(value) for key, value in dict(role.env or {}).items()}
    words = [str(role.entrypoint), *map(str, role.args)]
    return RoleRequest(mesh, words, env, replicas, _resource(getattr(role, "resource", None)))


def _resource(resource: Any) -> dict[str, int | str]:
    """What the resource of a role asks of Slurm. TorchX has -1, or 0 GPUs, for no wish."""
    if resource is None:
        return {}
    given = {name: getattr(resource, name, 0) or 0 for name in ("cpu", "gpu", "memMB")}
    found: dict[str, int | str] = {}
    if given["cpu"] > 0:
        found["cpus_per_task"] = int(given["cpu"])
    if given["gpu"] > 0:
        found["gpus_per_node"] = int(given["gpu"])
    if given["memMB"] > 0:
        found["mem"] = f"{int(given['memMB'])}M"
    return found


def common_resource(
    requests: Sequence[RoleRequest], given: Mapping[str, object]
) -> dict[str, int | str]:
    """The resources that all roles ask for, but for those that are `given`.

    Raises:
        ValueError: roles ask for different ones, which one allocation does not give.
    """
    found: dict[str, int | str] = {}
    for option in ("cpus_per_task", "gpus_per_node", "mem"):
        if option in given:
            continue
        asked = {one.name: one.resource.get(option) for one in requests}
        if len(set(asked.values())) > 1:
            each = ", ".join(f"{name}: {value or 'any'}" for name, value in asked.items())
            raise ValueError(
                f"the roles ask for different {option} ({each}), and all nodes of one Slurm job "
                f"have the same; give {option} in scheduler_cfg"
            )
        value = requests[0].resource.get(option)
        if value is not None:
            found[option] = value
    return found
