import pytest

from penstock.store.cdc.stream import ClientFeatures, requested_features, unknown_features


@pytest.mark.parametrize(
    ("version", "batched", "cluster_id"),
    [
        ("", False, False),
        ("nonsense", False, False),
        ("v8.5.0", False, False),
        ("4.0.7", False, False),
        ("4.0.8-alpha", False, False),
        ("4.0.8", True, False),
        ("5.3.0-rc.1", True, False),
        ("5.3.0", True, True),
        ("5.3.0+build.7", True, True),
        ("10.0.0-alpha", True, True),
    ],
)
def test_a_version_decides_how_to_talk(version, batched, cluster_id):
    assert ClientFeatures.of(version) == ClientFeatures(
        batched_resolved_ts=batched, sends_cluster_id=cluster_id
    )


def test_features_are_a_list_in_the_metadata():
    asked = requested_features(
        [("user-agent", "x"), ("features", "stream-multiplexing, teleport"), ("features", "a")]
    )
    assert asked == {"stream-multiplexing", "teleport", "a"}
    assert unknown_features(asked) == ["a", "teleport"]


def test_nothing_asked_is_nothing_unknown():
    assert unknown_features(requested_features([("user-agent", "x")])) == []
