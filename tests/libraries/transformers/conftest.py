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


@pytest.fixture
def biases(monkeypatch):
    """Return how position biases were passed, call by call: as tables of distances, nothing, or
    arrays."""
    library = pytest.importorskip("regard.torch", exc_type=ImportError)
    attend, kinds = library.scaled_dot_product_attention, []

    def recorded(*arguments, attn_mask=None, **options):
        parts = attn_mask if isinstance(attn_mask, tuple) else (attn_mask,)
        is_added = any(x is not None and x.is_floating_point() for x in parts)
        has_table = options.get("distance_bias") is not None
        kinds.append("distance_bias" if has_table else "float mask" if is_added else "nothing")
        return attend(*arguments, attn_mask=attn_mask, **options)

    monkeypatch.setattr(library, "scaled_dot_product_attention", recorded)
    return kinds
