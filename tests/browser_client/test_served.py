"""A coordinator serves the device for browsers to the pages of its own origin."""

from __future__ import annotations

from pathlib import Path

import httpx

from checkins.service import app
from tests.support.campaigns import long_campaign
from tests.support.coordinator import serving


def test_a_coordinator_serves_the_module_of_the_repository(tmp_path: Path) -> None:
    with serving(tmp_path, long_campaign("served")) as it, httpx.Client(base_url=it.url) as http:
        answer = http.get("/client.js", headers={"Origin": "https://elsewhere.example"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["x-content-type-options"] == "nosniff"
        # No other origin may import it, or read any response of the coordinator.
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.text == app.CLIENT_PLACES[1].read_text(encoding="utf-8")
        assert "import " not in answer.text.replace("//   import { Device", "")
        assert http.head("/client.js").status_code == 200
