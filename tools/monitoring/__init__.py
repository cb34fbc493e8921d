"""The dashboard and the alert rules, generated from the declarations of metrics."""
