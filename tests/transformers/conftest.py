import pytest


@pytest.fixture
def calls(monkeypatch):
    """The modules that have called regard's attention, in order."""
    transformers = pytest.importorskip("transformers")
    interface = transformers.AttentionInterface()
    attend, modules = interface["regard"], []

    def recorded(module, *arguments, **options):
        modules.append(module)
        return attend(module, *arguments, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "regard", recorded)
    return modules
