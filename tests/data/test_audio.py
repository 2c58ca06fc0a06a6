"""Recordings as speech models read them, held against what transformers' own extractors give."""

import json
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from support.models import build

import bitwright
from bitwright.data import AudioPreprocess, InputSpec, ShapedData, open_data
from bitwright.data.audio import read_recording
from bitwright.errors import DataError

# Made by transformers 5.23: every fifth frame of WhisperFeatureExtractor(chunk_length=1), and every
# fortieth value of Wav2Vec2FeatureExtractor(), of the wave below.
REFERENCE = Path(__file__).parents[1] / "fixtures" / "audio_features.npz"
TIME = np.arange(12_000) / 16_000
WAVE = 0.3 * np.sin(2 * np.pi * (300 + 2000 * TIME) * TIME) + 0.02 * np.cos(2 * np.pi * 3100 * TIME)
WAVE = WAVE.astype(np.float32)
FEATURES = InputSpec("input_features", np.dtype("float32"), ("batch", 80, 100))
VALUES = InputSpec("input_values", np.dtype("float32"), ("batch", "samples"))
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 1}
WAV2VEC2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "return_attention_mask": True}


def write_wav(path, samples, *, width=2, rate=16_000, channels=1):
    whole = np.round(np.clip(samples, -1, 1 - 2**-31) * 2**31).astype("<i4")
    raw = whole.view(np.uint8).reshape(-1, 4)[:, 4 - width :].copy()
    raw = raw ^ 0x80 if width == 1 else raw
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.tobytes())
    return path


def configured(folder, settings):
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(settings))
    return AudioPreprocess.from_config(path)


def test_spectra_are_those_of_whisper(tmp_path):
    found = configured(tmp_path, WHISPER).apply(WAVE, FEATURES)
    wanted = np.load(REFERENCE)["whisper"]
    assert found.shape == (80, 100) and found.dtype == np.float32
    np.testing.assert_allclose(found[:, ::5], wanted, atol=1e-6)


def test_waves_are_those_of_wav2vec2(tmp_path):
    found = configured(tmp_path, WAV2VEC2).apply(WAVE, VALUES)
    np.testing.assert_allclose(found[::40], np.load(REFERENCE)["wav2vec2"], atol=1e-6)
    assert found.mean() == pytest.approx(0, abs=1e-4) and found.std() == pytest.approx(1, abs=1e-3)


def test_a_model_of_a_fixed_length_gets_that_many_samples(tmp_path):
    chosen = configured(tmp_path, WAV2VEC2)
    for length in (5000, 20_000):
        spec = InputSpec("input_values", np.dtype("float32"), (1, length))
        found = chosen.apply(WAVE, spec)
        assert found.shape == (length,) and not found[12_000:].any()


@pytest.mark.parametrize(("width", "step"), [(1, 2**-7), (2, 2**-15), (3, 2**-23), (4, 2**-23)])
def test_integers_of_every_width_become_the_same_wave(tmp_path, width, step):
    path = write_wav(tmp_path / "a.wav", WAVE.astype(np.float64), width=width)
    np.testing.assert_allclose(read_recording(path, 16_000), WAVE, atol=step)


def test_channels_are_averaged(tmp_path):
    both = np.stack([WAVE, -WAVE], axis=1).reshape(-1)
    path = write_wav(tmp_path / "a.wav", both, channels=2, width=4)
    assert np.abs(read_recording(path, 16_000)).max() < 1e-6


def test_a_folder_of_recordings_is_data_with_a_mask(tmp_path):
    for name in ("a", "b"):
        write_wav(tmp_path / f"{name}.wav", WAVE)
    mask = InputSpec("attention_mask", np.dtype("int64"), ("batch", "samples"))
    data = ShapedData(data=tmp_path, transform=AudioPreprocess(spectra=False))
    samples = list(open_data(data, [VALUES, mask]))
    assert [sample["attention_mask"].sum() for sample in samples] == [12_000, 12_000]
    assert samples[0]["input_values"].shape == (1, 12_000)


def make_encoder(path):
    rng = np.random.default_rng(0)
    nodes = [
        make_node("Conv", ["input_features", "w"], ["c"], kernel_shape=[3], pads=[1, 1]),
        make_node("Relu", ["c"], ["last_hidden_state"]),
    ]
    weight = rng.normal(size=(16, 80, 3)).astype(np.float32)
    model = build(
        nodes, {"input_features": [1, 80, 100]}, {"last_hidden_state": [1, 16, 100]}, {"w": weight}
    )
    onnx.save(model, path)


def test_a_speech_model_calibrates_by_recordings_and_its_own_configuration(tmp_path):
    folder, sounds = tmp_path / "model" / "onnx", tmp_path / "sounds"
    folder.mkdir(parents=True)
    sounds.mkdir()
    make_encoder(folder / "encoder_model.onnx")
    configured(tmp_path / "model", WHISPER)
    for number in range(4):
        write_wav(sounds / f"{number}.wav", WAVE * (number + 1) / 4)
    result = bitwright.quantize(folder / "encoder_model.onnx", data=sounds, purpose="size")
    assert "4 recordings" in result.data and result.quantized["Conv"] == 1
    assert result.outputs[0].sqnr > 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor"}, "by SeamlessM4TFeature"),
        ({**WHISPER, "hop_length": 0}, "sizes that no model reads"),
        ({**WHISPER, "chunk_length": 10**6}, "sizes that no model reads"),
        ({**WHISPER, "n_fft": "many"}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, settings, said):
    with pytest.raises(DataError, match=said):
        configured(tmp_path, settings)


def test_bad_recordings_are_refused_with_the_command_that_converts_them(tmp_path):
    other = write_wav(tmp_path / "a.wav", WAVE, rate=44_100)
    with pytest.raises(DataError, match=r"has 44100 samples a second.*ffmpeg -i a\.wav -ac 1"):
        read_recording(other, 16_000)
    for name, content in (("b.mp3", b"ID3"), ("c.wav", b"RIFF....WAVE"), ("d.wav", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"convert it: ffmpeg -i {name}"):
            read_recording(tmp_path / name, 16_000)
    with pytest.raises(DataError, match="holds no sound"):
        read_recording(write_wav(tmp_path / "e.wav", WAVE[:0]), 16_000)


def test_without_a_configuration_nothing_says_how_a_model_reads_recordings(tmp_path):
    write_wav(tmp_path / "a.wav", WAVE)
    with pytest.raises(DataError, match=r"put its preprocessor_config\.json beside it"):
        open_data(tmp_path, [VALUES])
