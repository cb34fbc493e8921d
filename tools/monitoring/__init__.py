"""What watches a deployment: a dashboard and rules, made from the declarations of its metrics."""
