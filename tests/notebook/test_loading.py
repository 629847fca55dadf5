"""Loading starts nothing that unloading does not end, and procs need no notebook."""

from __future__ import annotations

import subprocess
import sys

from tests.notebook.kernel import Kernel

STATE = """
import signal, threading, monarch.actor
def _wakeup_fd():
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd
def _state():
    shell = get_ipython()
    formatters = shell.display_formatter.formatters
    from comm import get_comm_manager
    return {
        "hook": repr(monarch.actor.unhandled_fault_hook),
        "magics": sorted(n for kind in ("line", "cell") for n in shell.magics_manager.magics[kind]),
        "types": {m: sorted(map(repr, f.type_printers)) for m, f in formatters.items()},
        "events": {n: sorted(map(repr, c)) for n, c in shell.events.callbacks.items()},
        "exceptions": repr(shell.custom_exceptions),
        "targets": sorted(get_comm_manager().targets),
        "wakeup": _wakeup_fd(),
        "signal": (repr(signal.getsignal(signal.SIGINT)), repr(shell.kernel.saved_sigint_handler)),
        "display trap": repr(shell.display_trap.hook),
        "format": sorted(vars(shell.display_formatter)),
        "matchers": len(shell.Completer.custom_matchers),
        "threads": sorted(
            t.name
            for t in threading.enumerate()
            if t.name.startswith("monarch-") and not t.name.startswith("monarch-io")
        ),
    }
"""


def test_unloading_restores_everything(fresh_kernel: Kernel) -> None:
    kernel = fresh_kernel
    kernel.ok("%unload_ext monarch_jupyter")
    # What importing ipywidgets registers is not ours to take away.
    kernel.ok(f"import anywidget, monarch_jupyter\nanywidget.AnyWidget().close()\n{STATE}")
    kernel.ok("before = _state()")
    kernel.ok("%load_ext monarch_jupyter")
    kernel.ok("%monarch spawn workers gpus=1")
    kernel.ok("%monarch show")
    kernel.ok("%%monarch on workers\nprint('a line')\ndisplay(rank)")
    kernel.ok("%monarch asyncio on")
    kernel.ok("%monarch autoreload on")
    kernel.ok("%monarch static on")
    kernel.ok("1 + 1")
    assert kernel.value("_state() == before") == "False"
    kernel.ok("%unload_ext monarch_jupyter")
    assert (
        kernel.value("{k: (before[k], v) for k, v in _state().items() if before[k] != v}") == "{}"
    )
    assert kernel.value("workers.slice(gpus=0).sizes") == "{}", "meshes live on"
    kernel.ok("%load_ext monarch_jupyter")
    assert "workers" in kernel.ok("%monarch ls").result["text/plain"]
    kernel.ok("%monarch stop --all")


def test_loading_twice_is_loading_once(kernel: Kernel) -> None:
    kernel.ok("import monarch_jupyter\nmonarch_jupyter.load_ipython_extension(get_ipython())")
    kernel.ok("%monarch spawn workers gpus=2")
    assert kernel.ok("%%monarch on workers\nprint('once')").stdout == "[gpus=0..1] once\n"


def test_procs_import_the_package_without_anything_of_jupyter() -> None:
    heavy = ["IPython", "ipykernel", "anywidget", "ipywidgets", "traitlets", "comm", "tornado"]
    code = (
        "import sys, monarch_jupyter, monarch_jupyter.ranks.cell_runner\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_function_of_the_package_is_there() -> None:
    import monarch_jupyter

    for name in monarch_jupyter.__all__:
        assert callable(getattr(monarch_jupyter, name))
    assert set(monarch_jupyter.__all__) <= set(dir(monarch_jupyter))
