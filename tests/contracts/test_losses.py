"""What every loss in ``losses.__all__`` must do. A new one is tested here without a line being written.

A loss that cannot meet a clause is named in the clause's set of exceptions, with the reason.
"""

import inspect
import json
import math

import pytest
import torch
from tests.makers import ATTACHED, BY_ROW, NAMES, SOFT, WHOLE_BATCH, OnMps, gradient, make, simulate_mps
from torch import Tensor

from calibrant import losses
from calibrant._core.config import build, config_of, parameters_of, renewed
from calibrant.errors import InputError
from calibrant.losses import Penalty
from calibrant.testing import check_loss

# Both look at the logits themselves, not at the probabilities.
MOVED_BY_A_SHIFT = {"ACLSLoss", "LpNormLoss"}
CLASSES = 5


def sample(*shape: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return float32 logits of ``shape`` (N, K, …) and labels (N, …)."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=generator)
    return logits, torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_keeps_the_contract_that_others_are_held_to(name: str) -> None:
    for reduction in ("mean", "none" if name in BY_ROW else "sum"):
        check_loss(make(name, reduction=reduction))


def test_its_configuration_makes_it_again(name: str) -> None:
    loss = make(name, reduction="sum", ignore_index=7)
    again = build({"type": name, **json.loads(json.dumps(config_of(loss)))}, families=[losses])
    assert type(again) is type(loss)
    assert config_of(again) == config_of(loss)


@pytest.mark.parametrize("fault", ["shape", "nan", "ignored"])
def test_a_loss_that_breaks_the_contract_is_found(fault: str) -> None:
    class Broken(losses.RowLoss):
        def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
            p = torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=1)
            own = p.gather(1, labels[:, None])[:, 0]
            if fault == "shape":
                return own * torch.arange(len(own))  # depends on the order
            return -torch.log(own) if fault == "nan" else own - own.mean()  # infinite when saturated; rows that mix

    with pytest.raises(AssertionError, match="it does not hold that"):
        check_loss(Broken())


def test_one_row_needs_no_axis_and_no_row_is_nan_as_in_torch(name: str) -> None:
    logits, labels = sample(1, CLASSES)
    loss, ignored = make(name), torch.full_like(labels, -100)
    assert torch.allclose(loss(logits[0], labels[0]), loss(logits, labels))
    assert math.isnan(loss(logits, ignored).item())
    if name in WHOLE_BATCH:
        with pytest.raises(InputError, match="'none'"):
            make(name, reduction="none")
    else:
        rows = make(name, reduction="none")
        assert rows(logits[0], labels[0]).shape == ()
        assert torch.equal(rows(logits, ignored), torch.zeros(1))


def test_class_weights_multiply_terms_and_divide_the_mean(name: str) -> None:
    logits, labels = sample(12, CLASSES)
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0])
    loss, again = make(name, weight=weight), make(name, weight=torch.ones(CLASSES))
    again.load_state_dict(loss.state_dict())
    assert torch.equal(again(logits, labels), loss(logits, labels))
    with pytest.raises(InputError, match=r"weight of shape \(5,\), got \(3,\)"):
        make(name, weight=torch.ones(3))(logits, labels)
    if name in WHOLE_BATCH:
        base = losses.CrossEntropyLoss(weight=weight)(logits, labels) - losses.CrossEntropyLoss()(logits, labels)
        assert torch.allclose(loss(logits, labels) - make(name)(logits, labels), base, atol=1e-6)
        return
    terms = make(name, weight=weight, reduction="none")(logits, labels)
    plain = make(name, reduction="none")(logits, labels)
    if isinstance(loss, Penalty):
        nll = losses.CrossEntropyLoss(reduction="none")(logits, labels)
        assert torch.allclose(terms, plain + (weight[labels] - 1) * nll, atol=1e-5)
    else:
        assert torch.allclose(terms, plain * weight[labels], atol=1e-6)
    assert torch.allclose(loss(logits, labels), terms.sum() / weight[labels].sum(), rtol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "BinaryFocalLoss", "BinaryLabelSmoothingLoss"])
def test_a_number_that_is_assigned_takes_effect(name: str) -> None:
    of_events = {"BinaryFocalLoss": {"gamma": 2.0, "alpha": 0.3}, "BinaryLabelSmoothingLoss": {"smoothing": 0.1}}
    loss = getattr(losses, name)(**of_events[name]) if name in of_events else make(name)
    logits, labels = sample(12, CLASSES)
    labels = torch.nn.functional.one_hot(labels, CLASSES) if name in of_events else labels
    for key, value in config_of(loss).items():
        if isinstance(value, float) and key != "gamma_init":  # which is that of the first epoch alone
            setattr(loss, key, 0.7 * value)
            again = renewed(loss)
            again.load_state_dict(loss.state_dict())
            assert getattr(again, key) == 0.7 * value
            assert torch.equal(again(logits, labels), loss(logits, labels)), key


def test_target_probabilities_work_or_are_refused(name: str) -> None:
    logits, labels = sample(6, CLASSES)
    hard = torch.nn.functional.one_hot(labels, CLASSES).float()
    if name not in SOFT:
        with pytest.raises(InputError, match=f"integer labels for {name}, got target probabilities"):
            make(name)(logits, hard)
        return
    assert torch.allclose(make(name)(logits, hard), make(name)(logits, labels), rtol=1e-5)
    soft = torch.softmax(sample(6, CLASSES, seed=1)[0], dim=1)
    assert gradient(make(name), logits, soft).isfinite().all()
    with pytest.raises(InputError, match="class weights only with integer labels"):
        make(name, weight=torch.ones(CLASSES))(logits, soft)


def test_classes_may_come_in_any_order(name: str) -> None:
    logits, labels = sample(12, CLASSES)
    logits[6] = logits[2]  # equal confidences
    order = torch.tensor([3, 0, 4, 1, 2])
    moved, renamed = logits[:, order], torch.argsort(order)[labels]
    assert torch.allclose(make(name)(logits, labels), make(name)(moved, renamed), rtol=1e-5)
    assert torch.allclose(
        gradient(make(name), logits, labels)[:, order], gradient(make(name), moved, renamed), atol=1e-6
    )


def test_a_constant_added_to_a_row_changes_nothing(name: str) -> None:
    logits, labels = sample(12, CLASSES)
    same = torch.allclose(make(name)(logits, labels), make(name)(logits + 4.0, labels), rtol=1e-5)
    assert same == (name not in MOVED_BY_A_SHIFT)


IN_BLOCKS = [name for name in NAMES if name != "ProperFocalLoss"]  # which finds a root in float64 for each row


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_many_logits_give_what_few_do(name: str) -> None:
    for dtype in [torch.float32, torch.bfloat16]:
        # 70 × 1000 are computed block by block, the same in float64 by autograd
        logits, labels = sample(70, 1000, scale=4.0)
        logits[::2] *= 8
        labels[:20] = logits[:20].argmax(dim=1)
        labels[30] = -100
        logits = logits.to(dtype)
        value, exact = make(name)(logits, labels), make(name)(logits.double(), labels)
        assert torch.allclose(value.double(), exact, rtol=2e-6)
        grad, right = gradient(make(name), logits, labels), gradient(make(name), logits.double(), labels)
        tolerance = 1e-6 if dtype == torch.float32 else 8e-3  # one rounding to bfloat16
        assert (grad.double() - right).abs().max() <= tolerance * right.abs().max()


def test_second_derivatives_are_right(name: str) -> None:
    shape = (66, 1000) if name in IN_BLOCKS else (6, 4)
    logits, labels = sample(*shape, scale=1.0)
    direction = sample(*shape, seed=2)[0].double()
    loss = ATTACHED.get(name, lambda: make(name))()

    def product(values: Tensor) -> Tensor:
        leaf = values.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(leaf, labels), leaf, create_graph=True)
        return torch.autograd.grad((first * direction.to(first.dtype)).sum(), leaf)[0].double()

    step = 1e-6
    ahead, behind = (gradient(loss, logits.double() + sign * step * direction, labels).double() for sign in (1, -1))
    numeric = (ahead - behind) / (2 * step)
    # relative to the largest entry; the numeric derivative itself is good to about 1e-7
    assert (product(logits.double()) - numeric).abs().max() <= 1e-5 * numeric.abs().max()
    assert (product(logits) - numeric).abs().max() <= 1e-4 * numeric.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FocalLoss", "LpNormLoss", "MDCALoss"])  # one of each base
def test_it_compiles_without_graph_breaks(name: str) -> None:
    torch.compiler.reset()
    loss = make(name)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    logits, labels = sample(8, CLASSES)
    assert torch.allclose(compiled(logits, labels), loss(logits, labels), rtol=1e-5)
    assert torch.allclose(gradient(compiled, logits, labels), gradient(loss, logits, labels), atol=1e-6)


def test_autocast_does_not_lower_its_precision(name: str) -> None:
    logits, labels = sample(66, 1000) if name in IN_BLOCKS else sample(8, CLASSES)
    loss = make(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(logits, labels)
        assert value.dtype == torch.float32
        assert torch.allclose(value, loss(logits.double(), labels).float(), rtol=1e-5)


def test_it_works_on_a_device_without_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = sample(12, CLASSES)
    loss = make(name, weight=torch.ones(CLASSES))
    expected = loss(logits, labels)
    simulate_mps(monkeypatch)
    value = loss.to("mps")(OnMps(logits), OnMps(labels))
    assert isinstance(value, OnMps)
    torch.testing.assert_close(value.cpu(), expected)


def test_it_works_without_gradients_and_on_non_contiguous_logits(name: str) -> None:
    logits, labels = sample(1000, 66) if name in IN_BLOCKS else sample(8, CLASSES)
    loss, turned = make(name), logits.t().contiguous().t()
    with torch.no_grad():
        assert torch.allclose(loss(turned, labels), loss(logits, labels), rtol=1e-6)
    assert torch.allclose(gradient(loss, turned, labels), gradient(loss, logits, labels), atol=1e-7)


def test_a_class_axis_of_two_is_asked_for() -> None:  # what else does not fit: check_loss
    for logits, labels in (
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)),
        (torch.tensor(1.0), torch.tensor(0)),
    ):
        with pytest.raises(InputError, match="K ≥ 2"):
            losses.CrossEntropyLoss()(logits, labels)


DEFAULTS = {  # as published, where the papers state them
    "ACLSLoss": {"strength": 0.1, "margin": 10.0, "top": 1.0, "others": 0.1},
    "AURCLoss": {"quantile": 0.5, "bins": 64, "width": 0.05, "detach_weight": False},
    "AdaFocalLoss": {"bins": 15, "rate": 1.0, "switch": 0.2, "gamma_min": -2.0, "gamma_max": 20.0, "gamma_init": 1.0},
    "BSCELoss": {"gamma": 2.0, "norm": 2.0, "detach_weight": True},
    "DualFocalLoss": {"gamma": 5.0, "detach_weight": False},
    "FocalCalibrationLoss": {"gamma": 3.0, "strength": 1.0, "detach_weight": False},
    "FocalLoss": {"detach_weight": False},
    "InverseFocalLoss": {"detach_weight": False},
    "LabelSmoothingLoss": {"spread": "all"},
    "LpNormLoss": {"p": 1.0},
    "MDCALoss": {"strength": 1.0},
    "MMCELoss": {"strength": 2.0, "kernel_width": 0.4, "weighted": True, "normalisation": "kumar"},
    "MarginLabelSmoothingLoss": {"strength": 0.1, "margin": 10.0},
    "SampleDependentFocalLoss": {"gammas": (5.0, 3.0), "thresholds": (0.2,), "detach_weight": False},
    "SoftBinnedECELoss": {"strength": 1.0, "bins": 15, "temperature": 0.01, "norm": 2.0},
}


def test_arguments_are_torchs_and_defaults_as_published() -> None:
    for name in NAMES:
        parameters = parameters_of(getattr(losses, name))
        defaults = {key: parameter.default for key, parameter in parameters.items()}
        assert defaults | DEFAULTS.get(name, {}) == defaults
        if name != "Weighted":  # whose terms have them
            common = {"reduction": "mean", "weight": None, "ignore_index": -100}
            assert defaults | common == defaults
            assert {parameters[key].kind for key in common} == {inspect.Parameter.KEYWORD_ONLY}


def test_only_tensors_and_floating_logits_are_accepted() -> None:
    z, y = sample(4, CLASSES)
    several, weight = torch.zeros(4, CLASSES).long(), torch.eye(CLASSES)
    focal, binary = losses.FocalLoss(2.0), losses.BinaryFocalLoss(2.0)
    fused = losses.FusedLinearLoss(focal)
    for loss, hidden, labels in ((focal, [z], y), (binary, [z], several), (fused, [z, weight], y)):
        for wrong, message in (
            (z.long(), r"got torch\.int64 \(.*\); convert with"),
            (z.numpy(), "got ndarray; convert with"),
        ):
            with pytest.raises(InputError, match=rf"(logits|hidden) .*{message}"):
                loss(wrong, *hidden[1:], labels)
        with pytest.raises(InputError, match=r"labels as a tensor, got list; convert with torch\.as_tensor"):
            loss(*hidden, labels.tolist())
    with pytest.raises(InputError, match="integer labels of shape"):
        fused(z, weight, y.float())


@pytest.mark.parametrize("name", [n for n in NAMES if "detach_weight" in parameters_of(getattr(losses, n))])
def test_a_detached_weight_changes_the_gradient_alone(name: str) -> None:
    logits, labels = sample(8, CLASSES, scale=1.0)
    attached, detached = (make(name, detach_weight=detach) for detach in (False, True))
    assert torch.equal(attached(logits, labels), detached(logits, labels))
    assert not torch.allclose(gradient(attached, logits, labels), gradient(detached, logits, labels), atol=1e-4)


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(getattr(losses, n), Penalty)])
def test_a_penalty_takes_any_base(name: str) -> None:
    logits, labels = sample(8, CLASSES)
    over_focal = make(name, base=losses.FocalLoss(2.0))(logits, labels)
    focal, nll = losses.FocalLoss(2.0)(logits, labels), losses.CrossEntropyLoss()(logits, labels)
    assert torch.allclose(over_focal - focal, make(name)(logits, labels) - nll, atol=1e-6)
    with pytest.raises(InputError, match="on the base"):
        make(name, base=losses.FocalLoss(2.0), reduction="sum")


@pytest.mark.parametrize("name", [one for one in NAMES if one != "ProperFocalLoss"])
def test_functions_of_torch_func_agree_with_autograd(name: str) -> None:
    loss, (single, labels) = make(name), sample(4, CLASSES)
    for logits in (single, single.double()):
        one = torch.func.grad(loss)(logits, labels)
        torch.testing.assert_close(one, gradient(loss, logits, labels), rtol=1e-5, atol=1e-6)
        many = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(torch.stack([logits, -logits]), labels)
        torch.testing.assert_close(many[0], one, rtol=1e-5, atol=1e-6)
    forward = torch.func.jacfwd(torch.func.jacfwd(lambda z: loss(z, labels)))(single.double())
    twice = torch.autograd.functional.hessian(lambda z: loss(z, labels), single.double())
    torch.testing.assert_close(forward, twice, rtol=1e-5, atol=1e-8)


def test_the_proper_focal_loss_says_what_to_use_for_torch_func() -> None:
    with pytest.raises(InputError, match=r"torch.func cannot differentiate ProperFocalLoss; use backward\(\)"):
        torch.func.grad(losses.ProperFocalLoss(2.0))(*sample(4, CLASSES))
