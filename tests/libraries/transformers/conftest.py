import pytest


@pytest.fixture
def calls(monkeypatch):
    """Return the modules that have called regard's attention, in order."""
    transformers = pytest.importorskip("transformers")
    interface = transformers.AttentionInterface()
    attend, modules = interface["regard"], []

    def recorded(module, *arguments, **options):
        modules.append(module)
        return attend(module, *arguments, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "regard", recorded)
    return modules


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread: tiny models gain nothing from PyTorch's threads, which wait for each other in
    loops."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
