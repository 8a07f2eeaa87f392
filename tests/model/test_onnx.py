"""Export to ONNX by way of TorchScript (`dynamo=False`)."""

import io

import pytest
import torch


@pytest.mark.parametrize("changes", [{}, {"rms_norm": False, "rope": False, "hidden_act": "gelu"}])
@pytest.mark.filterwarnings("ignore")
def test_the_torchscript_exporter_knows_every_operator(make_model, changes):
    model, file = make_model(num_hidden_layers=1, **changes).eval(), io.BytesIO()
    model.config.return_dict = False
    ids = torch.randint(5, 96, (2, 7))
    try:
        torch.onnx.export(model, (ids, torch.ones_like(ids)), file, dynamo=False, opset_version=20)
    except torch.onnx.OnnxExporterError as error:
        # Only the last step, after every operator was translated, needs the package.
        assert "onnx is not installed" in str(error)  # noqa: PT017


def test_an_export_computes_what_the_model_does(make_model, monkeypatch):
    model, ids = make_model().eval(), torch.randint(5, 96, (2, 7))
    expected = model(ids).logits
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
