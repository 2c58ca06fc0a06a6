import json
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bitwright.data import InputSpec, open_data
from bitwright.data.image_preprocess import PREPROCESS_PRESETS, ImagePreprocess
from bitwright.errors import DataError, MissingPackageError, RecipeError

F32 = np.dtype("float32")
NCHW = InputSpec("x", F32, ("n", 3, 8, 8))


def picture(height, width, seed=0, channels=3):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def only(samples):
    (sample,) = samples
    return sample["x"]


@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    mean=st.tuples(*[st.floats(-2, 2)] * 3),
    std=st.tuples(*[st.floats(0.1, 3)] * 3),
    scale=st.sampled_from([1 / 255, 1.0, 1 / 127.5]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    color=st.sampled_from(["rgb", "bgr"]),
)
def test_normalising_is_the_formula(height, width, mean, std, scale, layout, color):
    image = picture(height, width)
    shape = (1, 3, None, None) if layout == "nchw" else (1, None, None, 3)
    prepared = ImagePreprocess(mean=mean, std=std, scale=scale, layout=layout, color=color)
    got = prepared.replace(resize=(height, width)).apply(image, InputSpec("x", F32, shape))
    pixels = np.asarray(image, np.float64)
    pixels = pixels[:, :, ::-1] if color == "bgr" else pixels
    wanted = (pixels * scale - np.array(mean)) / np.array(std)
    wanted = wanted.transpose(2, 0, 1) if layout == "nchw" else wanted
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
    assert got.dtype == F32


@given(
    height=st.integers(4, 16),
    width=st.integers(4, 16),
    tall=st.integers(1, 4),
    wide=st.integers(1, 4),
)
def test_cropping_takes_the_centre(height, width, tall, wide):
    image = picture(height, width)
    spec = InputSpec("x", F32, (1, None, None, 3))
    got = ImagePreprocess(crop=(tall, wide), scale=1.0).apply(image, spec)
    top, left = round((height - tall) / 2), round((width - wide) / 2)
    wanted = np.asarray(image)[top : top + tall, left : left + wide]
    np.testing.assert_array_equal(got, wanted)


@given(height=st.integers(2, 9), width=st.integers(2, 9), times=st.integers(1, 4))
def test_nearest_resizing_by_a_whole_number_repeats_pixels(height, width, times):
    image = picture(height, width)
    spec = InputSpec("x", F32, (1, None, None, 3))
    prepared = ImagePreprocess(
        resize=(height * times, width * times), interpolation="nearest", scale=1.0
    )
    wanted = np.asarray(image).repeat(times, axis=0).repeat(times, axis=1)
    np.testing.assert_array_equal(prepared.apply(image, spec), wanted)


@given(height=st.integers(4, 40), width=st.integers(4, 40), side=st.integers(2, 20))
def test_the_shortest_side_becomes_the_size_and_the_ratio_stays(height, width, side):
    spec = InputSpec("x", F32, (1, None, None, 3))
    got = ImagePreprocess(resize=side).apply(picture(height, width), spec)
    assert min(got.shape[:2]) == side
    longest = side * max(height, width) // min(height, width)
    assert max(got.shape[:2]) == longest
    assert (got.shape[0] <= got.shape[1]) == (height <= width) or longest == side


@given(height=st.integers(2, 30), width=st.integers(2, 30))
def test_a_letterbox_keeps_the_ratio_and_pads_around(height, width):
    image = Image.new("RGB", (width, height), (255, 255, 255))
    spec = InputSpec("x", F32, (1, 16, 24, 3))
    got = ImagePreprocess(letterbox=True, pad=51).apply(image, spec)
    assert got.shape == (16, 24, 3)
    inside = got[:, :, 0] == 1.0
    rows, columns = inside.any(axis=1).sum(), inside.any(axis=0).sum()
    ratio = min(16 / height, 24 / width)
    assert (rows, columns) == (max(1, round(height * ratio)), max(1, round(width * ratio)))
    np.testing.assert_allclose(got[:, :, 0][~inside], 51 / 255)
    assert abs(int(inside.any(axis=1).argmax()) - (16 - rows) / 2) < 1


def test_the_imagenet_preset_is_resize_crop_normalise():
    image = picture(300, 400)
    spec = InputSpec("x", F32, ("n", 3, 224, 224))
    got = PREPROCESS_PRESETS["imagenet"].apply(image, spec)
    small = image.resize((341, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(small, np.float64)[16 : 16 + 224, 58 : 58 + 224] / 255
    wanted = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(got, wanted.transpose(2, 0, 1), atol=1e-5)


def test_size_layout_and_channels_follow_the_model(tmp_path):
    picture(20, 30).save(tmp_path / "a.png")
    for shape in [(1, 3, 8, 6), (1, 8, 6, 3), (1, 1, 8, 6), (1, 8, 6, 1), (3, 8, 6), (8, 6, 1)]:
        spec = InputSpec("x", F32, shape)
        assert only(open_data(tmp_path, [spec])).shape == shape


def test_an_open_size_asks_for_one(tmp_path):
    picture(5, 7).save(tmp_path / "a.png")
    picture(6, 4).save(tmp_path / "b.png")
    spec = InputSpec("x", F32, ("n", 3, "h", "w"))
    with pytest.raises(DataError, match="give transform='resize=224x224'") as caught:
        list(open_data(tmp_path, [spec]))
    assert "give --transform resize=224x224." in caught.value.for_command
    sized = open_data(tmp_path, [spec], transform="resize=6x5")
    assert [sample["x"].shape for sample in sized] == [(1, 3, 6, 5)] * 2
    own = open_data(tmp_path, [spec], transform=lambda image: np.zeros((3, *image.size[::-1])))
    assert [sample["x"].shape for sample in own] == [(1, 3, 5, 7), (1, 3, 6, 4)]


def test_images_in_memory_are_read_as_files_are(tmp_path):
    images = [picture(9, 9), picture(5, 7)]
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number}.png")
    from_files = [sample["x"] for sample in open_data(tmp_path, [NCHW], transform="raw")]
    for source in (images, [(image, 3) for image in images], [{"img": i, "y": 0} for i in images]):
        found = [sample["x"] for sample in open_data(source, [NCHW], transform="raw")]
        np.testing.assert_array_equal(found, from_files)
    batches = open_data(images, [InputSpec("x", F32, (2, 3, 8, 8))])
    assert [sample["x"].shape for sample in batches] == [(2, 3, 8, 8)]


def test_a_shortest_side_is_cropped_to_the_models_size():
    got = ImagePreprocess(resize=10).apply(picture(30, 20), NCHW)
    assert got.shape == (3, 8, 8)


def test_integer_inputs_take_raw_pixels(tmp_path):
    image = picture(8, 8)
    image.save(tmp_path / "a.png")
    spec = InputSpec("x", np.dtype("uint8"), (1, 8, 8, 3))
    np.testing.assert_array_equal(only(open_data(tmp_path, [spec]))[0], np.asarray(image))
    with pytest.raises(DataError, match="use the preprocessing 'raw'"):
        list(open_data(tmp_path, [spec], transform="unit"))


def test_a_fixed_batch_is_filled_with_images(tmp_path):
    for number in range(5):
        picture(8, 8, number).save(tmp_path / f"{number}.png")
    spec = InputSpec("x", F32, (2, 3, 8, 8))
    with pytest.warns(UserWarning, match="the last 1 of 5 images are left out"):
        samples = list(open_data(tmp_path, [spec]))
    assert [sample["x"].shape for sample in samples] == [(2, 3, 8, 8)] * 2
    with pytest.raises(DataError, match="takes 9 images at a time and there are only 5"):
        open_data(tmp_path, [InputSpec("x", F32, (9, 3, 8, 8))])


def test_one_image_file_is_one_sample(tmp_path):
    picture(8, 8).save(tmp_path / "a.jpg")
    samples = open_data(tmp_path / "a.jpg", [NCHW])
    assert samples.len_hint == 1
    assert samples.description.endswith("a.jpg (1 image)")
    assert only(samples).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_every_8_bit_mode_becomes_rgb(tmp_path, mode):
    suffix = "tif" if mode == "CMYK" else "png"
    picture(8, 8).convert(mode).save(tmp_path / f"a.{suffix}")
    assert only(open_data(tmp_path, [NCHW])).shape == (1, 3, 8, 8)


def test_the_text_form_says_everything():
    text = (
        "resize=256x320,letterbox=true,pad=114,crop=224,interpolation=bicubic,scale=1/127.5,"
        "mean=0.485/0.456/0.406,std=0.5,layout=nchw,color=bgr,dtype=float16"
    )
    assert ImagePreprocess.parse(text) == ImagePreprocess(
        resize=(256, 320),
        letterbox=True,
        pad=114,
        crop=(224, 224),
        interpolation="bicubic",
        scale=1 / 127.5,
        mean=(0.485, 0.456, 0.406),
        std=(0.5,),
        layout="nchw",
        color="bgr",
        dtype="float16",
    )
    assert ImagePreprocess.parse("raw, color=gray").color == "gray"
    assert {name: ImagePreprocess.parse(name) for name in PREPROCESS_PRESETS} == PREPROCESS_PRESETS


@pytest.mark.parametrize("value", PREPROCESS_PRESETS.values(), ids=PREPROCESS_PRESETS)
def test_the_value_round_trips_through_json(value):
    assert msgspec.json.decode(msgspec.json.encode(value), type=ImagePreprocess) == value
    assert json.loads(msgspec.json.encode(value))["pad"] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sise=3", "unknown preprocessing key 'sise'"),
        ("rezise=3", "Did you mean 'resize'?"),
        ("imagnet", "Did you mean 'imagenet'?"),
        ("", "unknown preprocessing ''"),
        ("resize=256,imagenet", "preset's name first"),
        ("resize=256,resize=3", "'resize' twice"),
        ("resize=big", "resize=224 or resize=224x320"),
        ("crop=1x2x3", "is no size"),
        ("resize=0", "at least 1 pixel"),
        ("mean=a/b", "not a list of numbers"),
        ("mean=1/2", "one number or three"),
        ("std=0", "std must not be 0"),
        ("scale=nan", "finite"),
        ("scale=1/0", "write scale=1/255"),
        ("layout=nchv", "Did you mean 'nchw'?"),
        ("color=cmyk", "Known: bgr, gray, rgb."),
        ("letterbox=maybe", "write letterbox=true"),
        ("letterbox=true,resize=256", "resize=256x256"),
        ("pad=300", "0 to 255"),
        ("pad=x", "whole number"),
        ("dtype=complex", "unknown"),
    ],
)
def test_a_bad_description_is_refused_with_its_remedy(text, words):
    with pytest.raises(RecipeError) as caught:
        ImagePreprocess.parse(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "transform", "words"),
    [
        ((1, 3), "unit", "not the shape of an image"),
        ((1, None, None, None), "unit", "give transform='layout=nchw' or layout=nhwc"),
        ((1, 3, 8, 8), "color=gray", "takes 3 channels, but color=gray gives 1"),
        ((1, 4, 8, 8), "layout=nchw", "takes 4 channels"),
        ((1, 3, 40, 40), "crop=40", "smaller than the crop 40x40"),
        ((1, 1, 8, 8), "mean=0.1/0.2/0.3", "mean has 3 numbers"),
        ((1, 3, None, None), "letterbox=true", "give transform='resize=224x224'"),
        ((1, 3, 8, 8), "resize=9x9", "dimension 2 8 instead of 9"),
        ((1, 3, 8, 8), "dtype=uint8", "takes uint8 pixels"),
    ],
)
def test_what_the_model_cannot_take_is_refused(tmp_path, shape, transform, words):
    picture(20, 20).save(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        list(open_data(tmp_path, [InputSpec("x", F32, shape)], transform=transform))
    assert words in str(caught.value)


def test_images_of_different_size_do_not_fit_one_batch(tmp_path):
    picture(5, 7).save(tmp_path / "a.png")
    picture(6, 4).save(tmp_path / "b.png")
    with pytest.raises(DataError, match="have different sizes"):
        list(open_data(tmp_path, [InputSpec("x", F32, (2, 3, "h", "w"))], transform="resize=4"))


def test_images_cannot_feed_two_inputs(tmp_path):
    picture(8, 8).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="one input only, and this one has 2"):
        open_data(tmp_path, [NCHW, InputSpec("y", F32, (1,))])


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tif", "gif", "webp"])
def test_a_damaged_image_is_named(tmp_path, suffix):
    picture(40, 40).save(tmp_path / f"a.{suffix}")
    whole = (tmp_path / f"a.{suffix}").read_bytes()
    picture(8, 8).save(tmp_path / "0.png")
    for content in (whole[: len(whole) // 2], b"", b"not an image at all"):
        (tmp_path / f"a.{suffix}").write_bytes(content)
        stream = iter(open_data(tmp_path, [NCHW]))
        next(stream)
        with pytest.raises(DataError, match=rf"a\.{suffix}' cannot be read .*; replace it"):
            next(stream)


def test_16_bit_images_are_refused_and_not_clipped(tmp_path):
    Image.fromarray(np.full((8, 8), 40000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a.png' has more than 8 bits"):
        list(open_data(tmp_path, [NCHW]))


def test_postscript_is_no_image_whatever_its_name(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *arguments: ran.append(arguments))
    program = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "a.png").write_text(program)
    with pytest.raises(DataError, match="cannot be read"):
        list(open_data(tmp_path / "a.png", [NCHW]))
    assert not ran


def test_a_photo_is_rotated_as_its_exif_data_say(tmp_path):
    upright = picture(8, 8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored a quarter turn to the left of how it is seen
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    got = only(open_data(tmp_path / "a.png", [NCHW]))[0]
    np.testing.assert_array_equal(got, ImagePreprocess().apply(upright, NCHW))


@pytest.mark.parametrize("limit", [40, 20])  # Pillow warns of the first, and refuses the second
def test_an_image_beyond_pillows_limit_is_refused(tmp_path, monkeypatch, limit):
    picture(8, 8).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=f"a.png' has more than {limit} pixels"):
        list(open_data(tmp_path / "a.png", [NCHW]))


def test_no_image_is_blown_up_beyond_reason(tmp_path):
    for text in ("resize=99999", "resize=8x99999", "crop=99999"):
        with pytest.raises(RecipeError, match="at most 16384 pixels, not 99999"):
            ImagePreprocess.parse(text)
    picture(1, 200).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="1x200 pixels would become 256x51200"):
        list(open_data(tmp_path / "a.png", [NCHW], transform=ImagePreprocess(resize=256)))


def test_missing_pillow_says_how_to_install_it(tmp_path, monkeypatch):
    picture(8, 8).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[images\]'"):
        open_data(tmp_path, [NCHW])


OPEN = InputSpec("x", F32, (None, 3, None, None))


def test_images_of_one_size_keep_it_where_the_model_leaves_it_open(tmp_path):
    for index in range(3):
        picture(6, 10, index).save(tmp_path / f"{index}.png")
    samples = open_data(tmp_path, [OPEN], transform="mean=0.5,std=0.5")
    assert {sample["x"].shape for sample in samples} == {(1, 3, 6, 10)}
    assert samples.description.endswith("(3 images), at their own size 6x10")
    expected = (np.asarray(picture(6, 10, 0)) / 255 - 0.5) / 0.5
    first = next(iter(samples))["x"][0].transpose(1, 2, 0)
    np.testing.assert_allclose(first, expected, atol=1e-6)


def test_the_size_of_a_photograph_is_that_of_the_upright_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    picture(6, 10).save(tmp_path / "lying.jpg", exif=exif)
    picture(10, 6).save(tmp_path / "upright.png")
    assert {one["x"].shape for one in open_data(tmp_path, [OPEN])} == {(1, 3, 10, 6)}


def test_images_of_several_sizes_need_one_where_the_model_leaves_it_open(tmp_path):
    picture(6, 10).save(tmp_path / "a.png")
    picture(6, 11).save(tmp_path / "b.png")
    with pytest.raises(DataError, match="leaves the size of images open"):
        list(open_data(tmp_path, [OPEN]))
    assert only(open_data([picture(6, 10)], [OPEN])).shape == (1, 3, 6, 10)


@pytest.mark.parametrize(
    ("config", "same"),
    [
        (
            {
                "size": {"shortest_edge": 8},
                "crop_size": {"height": 6, "width": 6},
                "do_center_crop": True,
                "image_mean": [0.5, 0.4, 0.3],
                "image_std": [0.2, 0.3, 0.4],
                "resample": 3,
            },
            "resize=8,crop=6,mean=0.5/0.4/0.3,std=0.2/0.3/0.4,interpolation=bicubic",
        ),
        ({"size": 8, "do_normalize": False, "resample": 0}, "resize=8,interpolation=nearest"),
        (
            {"size": {"height": 8, "width": 9}, "do_rescale": False, "image_mean": [1] * 3}
            | {"image_std": [2] * 3},
            "resize=8x9,scale=1,mean=1/1/1,std=2/2/2",
        ),
        ({"do_resize": False, "rescale_factor": 0.5}, "scale=0.5"),
    ],
)
def test_a_preprocessor_config_says_what_a_transform_says(tmp_path, config, same):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(config))
    assert ImagePreprocess.from_config(file) == ImagePreprocess.parse(same)


@pytest.mark.parametrize("text", ["{", '{"size": {"longest_edge": 8}}'])
def test_a_preprocessor_config_that_is_not_understood_asks_for_a_transform(tmp_path, text):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(text)
    with pytest.raises(DataError, match="give a transform"):
        ImagePreprocess.from_config(file)


IMAGE = InputSpec("x", np.dtype("float32"), ("n", 3, 16, 16))


def save_video(path, frames, per_second):
    """Write frames of one gray each, brighter and brighter."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=per_second)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.full((64, 64, 3), 255 * number // frames, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_a_video_gives_one_frame_of_each_second(tmp_path):
    save_video(tmp_path / "film.mp4", frames=30, per_second=10)
    samples = open_data(tmp_path / "film.mp4", [IMAGE])
    means = [float(sample["x"].mean()) for sample in samples]
    np.testing.assert_allclose(means, [0, 1 / 3, 2 / 3], atol=0.03)
    assert len(list(open_data(tmp_path, [IMAGE], limit=2))) == 2


def test_a_damaged_video_is_one_sentence(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "film.mp4").write_bytes(b"no video at all")
    with pytest.raises(DataError, match="cannot be read"):
        list(open_data(tmp_path / "film.mp4", [IMAGE]))


def test_without_pyav_the_package_to_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "film.mp4").write_bytes(b"")
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[video\]'"):
        list(open_data(tmp_path / "film.mp4", [IMAGE]))


def test_a_fixed_batch_takes_no_video(tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"")
    spec = InputSpec("x", np.dtype("float32"), (4, 3, 16, 16))
    with pytest.raises(DataError, match="takes 4 images at a time"):
        list(open_data(tmp_path / "film.mp4", [spec]))
