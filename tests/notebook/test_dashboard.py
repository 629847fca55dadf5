"""`%monarch dashboard` in a real kernel: a link to the page over the session."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from monarch_jupyter.magics.dashboard import HUB_PREFIX, DashboardLink
from tests.notebook.kernel import Kernel

PATIENCE_S = 60


def test_the_magic_links_to_the_page_of_this_session(kernel: Kernel) -> None:
    said = kernel.refused("%monarch dashboard")
    assert said == "the admin server needs a session: spawn a mesh, or attach to one, first"
    kernel.ok("%monarch spawn workers gpus=2")
    shown = kernel.ok("%monarch dashboard").result
    url, remedy = shown["text/plain"].splitlines()
    assert remedy.startswith("from another machine: ssh -L ")
    assert f'href="{url}"' in shown["text/html"]
    assert remedy in shown["text/html"]
    page = url.partition("?")[0]
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(page, timeout=PATIENCE_S)
    refused.value.close()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(url, timeout=PATIENCE_S) as answer:
        assert answer.url == page
    assert kernel.refused("%monarch dashboard workers").startswith("dashboard takes no names")


def test_through_a_hub_the_link_goes_over_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch_jupyter.magics import dashboard

    class Server:
        dashboard_url = "http://127.0.0.1:4000/dashboard/?token=abc"

    monkeypatch.setattr(dashboard.observe, "dashboard", Server)
    monkeypatch.setenv(HUB_PREFIX, "/user/someone/")
    link = dashboard.dashboard()
    assert link.proxied == "/user/someone/proxy/4000/dashboard/?token=abc"
    assert 'href="/user/someone/proxy/4000/dashboard/?token=abc"' in link._repr_html_()
    assert "ssh" not in link._repr_html_()
    assert repr(link).startswith("http://127.0.0.1:4000/dashboard/")
    assert DashboardLink("http://127.0.0.1:1/").proxied == ""
