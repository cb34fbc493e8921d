"""`penstock doctor`: finds what keeps a deployment from working here, and says how to fix it."""
