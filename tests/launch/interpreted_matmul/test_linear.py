"""`patch_linear`: which layers it takes, that results, gradients and state stay, and that it can be undone."""

import copy
import pickle

import pytest
import torch

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandTypeError
from wavetune.launch.linear import TunedLinear, patch_linear


def make_model() -> torch.nn.Sequential:
    """Return two fp16 layers, one of fp32, and attention, whose projection is a Linear of another class."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24, bias=False)).half()
    model.append(torch.nn.Linear(24, 8))
    model.append(torch.nn.MultiheadAttention(8, 2))
    return model


def test_layers_are_taken_and_given_back() -> None:
    """Two of four; the others are counted by reason; undo restores class and result, and may be repeated."""
    model = make_model()
    x = torch.randn(2, 3, 32).half()
    expected, state = model[:3](x), {name: value.clone() for name, value in model.state_dict().items()}
    patch = patch_linear(model)
    assert patch.count == 2
    assert patch.skipped == {"of torch.float32": 1, "of class NonDynamicallyQuantizableLinear": 1}
    assert "2 linear layers" in repr(patch)
    torch.testing.assert_close(model[:3](x), expected, atol=5e-3, rtol=5e-3)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert isinstance(model[0], torch.nn.Linear)
    assert model[3](torch.randn(2, 24)).dtype == torch.float32
    patch.undo()
    patch.undo()
    assert type(model[0]) is torch.nn.Linear
    assert torch.equal(model[:3](x), expected)
    with patch_linear(model):
        assert type(model[0]) is TunedLinear
    assert type(model[0]) is torch.nn.Linear


def test_launches_go_through_the_runtime(launched: list[tuple[GemmProblem, KernelConfig]]) -> None:
    """The weight is read where it is; leading axes are rows; other input goes to torch."""
    layer = torch.nn.Linear(32, 24).half()
    patch_linear(layer, numerics="deterministic")
    layer(torch.randn(2, 3, 32).half())
    assert [(problem.dims, problem.layout) for problem, _ in launched] == [((6, 24, 32), "nk")]
    with pytest.raises(RuntimeError, match="dtype"):
        layer(torch.randn(3, 32))
    with torch.autocast("cpu", dtype=torch.float16):
        assert layer(torch.randn(3, 32)).dtype == torch.float16
    assert len(launched) == 1


def test_patched_layers_train_compile_and_travel() -> None:
    """Gradients reach the parameters, a graph has no break, and copies are patched layers too."""
    layer, plain = torch.nn.Linear(32, 24).half(), torch.nn.Linear(32, 24).half()
    plain.load_state_dict(layer.state_dict())
    patch_linear(layer)
    x = torch.randn(5, 32).half()
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        layer.zero_grad()
        plain.zero_grad()
        run(x).sum().backward()
        plain(x).sum().backward()
        torch.testing.assert_close(layer.weight.grad, plain.weight.grad, atol=2e-2, rtol=1e-2)
        torch.testing.assert_close(layer.bias.grad, plain.bias.grad)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is TunedLinear
        assert torch.equal(twin(x), layer(x))


def test_wrong_arguments() -> None:
    """A tensor is no model, and numerics have names."""
    with pytest.raises(OperandTypeError, match="model must be"):
        patch_linear(torch.zeros(2))
    with pytest.raises(OperandTypeError, match="numerics"):
        patch_linear(torch.nn.Linear(2, 2), numerics="exact")
