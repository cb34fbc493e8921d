import penstock.tables


def test_what_the_package_offers_is_sorted_and_there():
    names = penstock.tables.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(penstock.tables, name) for name in names)
