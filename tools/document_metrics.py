"""Write what watches a deployment from the metrics' declarations, or compare it with `--check`.

docs/reference/metrics.md and alerts.md, deploy/grafana/penstock.json, deploy/prometheus/alerts.yml and
prometheus.yml. A metric that is gone, and is still asked for, ends it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from monitoring.alerts import ALERTS, rules, scraping
from monitoring.dashboards import dashboard
from monitoring.declared import families
from penstock.settings import ApiSettings

ROOT = Path(__file__).parent.parent
MADE = "Made by tools/document_metrics.py from penstock.metrics; `make docs` writes it again."


def metrics_page() -> Iterator[str]:
    """Every metric: name, type, labels, meaning."""
    yield f"# Metrics\n\n<!-- {MADE} -->\n"
    yield (
        "What every process shows at its `/metrics`, and the API for all parts together, each sample with\n"
        "the label `part`. Names are as Prometheus has them; a histogram's samples end in `_bucket`, `_sum`\n"
        "and `_count`. [Monitoring](../guides/monitoring.md) says how to watch them, [Alerts](alerts.md)\n"
        "what to do."
    )
    for family, found in families().items():
        yield f"\n## {family}\n\n| metric | type | labels | meaning |\n|---|---|---|---|"
        for each in found:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            meaning = each.meaning.replace("|", "\\|")
            yield f"| `{each.name}` | {each.kind} | {labels} | {meaning} |"


def alerts_page() -> Iterator[str]:
    """Every alert: when, what it means, what to do."""
    yield f"# Alerts\n\n<!-- {MADE} -->\n"
    yield (
        "The rules of `deploy/prometheus/alerts.yml`. **critical**: changes do not arrive. **warning**:\n"
        "they are late, or soon will be. **info**: for whoever looks."
    )
    for alert in ALERTS:
        yield f"\n## {alert.name}\n"
        lasting = "" if alert.lasting == "0s" else f", for {alert.lasting}"
        yield f"**{alert.severity}** when `{alert.expression}`{lasting}.\n"
        yield f"{alert.meaning}\n\n**Do:** {alert.remedy}"


def as_yaml(tree: dict[str, Any]) -> str:
    """A file that people read."""
    return f"# {MADE}\n{yaml.safe_dump(tree, sort_keys=False, width=120)}"


def made() -> dict[str, str]:
    """The text of each file."""
    return {
        "docs/reference/metrics.md": "\n".join(metrics_page()) + "\n",
        "docs/reference/alerts.md": "\n".join(alerts_page()) + "\n",
        "deploy/grafana/penstock.json": json.dumps(dashboard(), indent=1) + "\n",
        "deploy/prometheus/alerts.yml": as_yaml(rules()),
        "deploy/prometheus/prometheus.yml": as_yaml(scraping(ApiSettings().addr)),
    }


if __name__ == "__main__":
    for name, text in made().items():
        path = ROOT / name
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"run 'make docs': {name} is out of date")
