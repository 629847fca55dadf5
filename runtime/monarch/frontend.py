"""Functions for front ends such as the notebook, beside `monarch.observe`.

Unstable: any version may change them.
"""

from monarch._src.actor.ports import unheeded
from monarch._src.actor.work import calls_of_others
from monarch._src.actor.work import under_way as work_under_way
from monarch._src.failures.endpoint_text import endpoint_text, is_label
from monarch._src.failures.report import by_place as failures_by_place
from monarch._src.failures.report import fold as fold_failures
from monarch._src.failures.report import others_text as other_failures_text
from monarch._src.logs.carriage_returns import shown as as_shown
from monarch._src.logs.state.folding import Fold, OutputFolder, timed_folds
from monarch._src.mesh.actor_mesh import CallTarget, call_target_of
from monarch._src.mesh.actor_spawning import accompany_actors
from monarch._src.mesh.client_imports import note_imports_in
from monarch._src.mesh.live_update import actor_class_of, actor_meshes, failed_ranks, update_actors
from monarch._src.mesh.rank_restarts import can_restart
from monarch._src.mesh.selected_procs import as_viewed, coordinates
from monarch._src.mesh.work_on_mesh import work_beside
from monarch._src.observe.meshes import (
    CodePlace,
    FailedActors,
    StartingMesh,
    number_calls,
    starting,
)
from monarch._src.observe.open_calls import is_waiting, newest_call, owing_answers
from monarch._src.shape.coordinates import (
    Coordinates,
    name_indices,
    name_point,
    name_procs,
    name_ranks,
)
from monarch._src.workspace.module_reload import ModuleReloader, Reload, Stamp, source_file
from monarch._src.workspace.rank_actors import RankReloader
from monarch._src.workspace.sync import edited_workspaces
from monarch.actor import context as _context  # registers this process as a client

del _context

__all__ = [
    "CallTarget",
    "CodePlace",
    "Coordinates",
    "FailedActors",
    "Fold",
    "ModuleReloader",
    "OutputFolder",
    "RankReloader",
    "Reload",
    "Stamp",
    "StartingMesh",
    "accompany_actors",
    "actor_class_of",
    "actor_meshes",
    "as_shown",
    "as_viewed",
    "call_target_of",
    "calls_of_others",
    "can_restart",
    "coordinates",
    "edited_workspaces",
    "endpoint_text",
    "failed_ranks",
    "failures_by_place",
    "fold_failures",
    "is_label",
    "is_waiting",
    "name_indices",
    "name_point",
    "name_procs",
    "name_ranks",
    "newest_call",
    "note_imports_in",
    "number_calls",
    "other_failures_text",
    "owing_answers",
    "source_file",
    "starting",
    "timed_folds",
    "unheeded",
    "update_actors",
    "work_beside",
    "work_under_way",
]
