"""From the change streams of regions to a consumer: subscriptions, matching, resolved timestamps."""
