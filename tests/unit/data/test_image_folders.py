"""Folders of images: pixels of more than 8 bits, and images that are stored on their side."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from stratal.base.errors import AttributeValueError, DTypeError, FormatError
from stratal.data import AudioFolder, BadRowError, ImageFolder, Pipeline
from stratal.data.sources.class_folders import class_folders

pytestmark = [pytest.mark.quick, pytest.mark.row("F21")]


def test_images_of_more_than_8_bits_keep_their_pixels_or_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    grey = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    image.fromarray(grey).save(tmp_path / "a" / "0.png")
    image.fromarray(grey).save(tmp_path / "a" / "1.tif")
    image.fromarray(grey.astype(np.float32) / 7).save(tmp_path / "a" / "2.tiff")
    image.fromarray(grey.astype(np.int32) << 12).save(tmp_path / "a" / "3.tif")
    image.fromarray(grey.astype(np.uint8)).save(tmp_path / "a" / "4.png")
    for mode in ("L", "RGB", "RGBA"):
        found = Pipeline(ImageFolder(tmp_path, mode=mode), on_error="collect")
        assert len(list(found)) == 1 and [bad.row for bad in found.bad_rows] == [0, 1, 2, 3]
        assert "mode='I'" in found.bad_rows[0].reason and "mode='F'" in found.bad_rows[2].reason
    whole, floats = (ImageFolder(tmp_path, mode=mode) for mode in ("I", "F"))
    for k in (0, 1):
        assert whole[k][0].dtype == np.int32 and whole[k][0].tolist() == [grey.tolist()]
        assert floats[k][0].dtype == np.float32 and floats[k][0].tolist() == [grey.tolist()]
    assert whole[3][0].max() == 55000 << 12 and floats[2][0].tolist() == [(grey / np.float32(7)).tolist()]
    assert whole[4][0].tolist() == floats[4][0].tolist() == [grey.astype(np.uint8).tolist()]
    for source, k in ((whole, 2), (floats, 3)):
        with pytest.raises(BadRowError, match="mode"):
            source[k]
    assert ImageFolder(tmp_path, mode="I", size=(6, 8))[0][0].shape == (1, 6, 8)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_images_are_turned_upright_as_their_exif_data_says(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    upright = {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1], 5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, -1), 7: pixels[::-1, ::-1].swapaxes(0, 1), 8: np.rot90(pixels), 9: pixels,
    }  # fmt: skip
    for tag in upright:
        exif = image.Exif()
        exif[0x0112] = tag
        image.fromarray(pixels).save(tmp_path / "a" / f"{tag}.png", exif=exif)
    for k, expected in enumerate(upright.values()):
        assert np.array_equal(ImageFolder(tmp_path)[k][0], expected.transpose(2, 0, 1))
        stored = ImageFolder(tmp_path, exif_transpose=False)[k][0]
        assert np.array_equal(stored, pixels.transpose(2, 0, 1))
    image.fromarray(pixels).save(tmp_path / "a" / "1.png", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert np.array_equal(ImageFolder(tmp_path)[0][0], pixels.transpose(2, 0, 1))


# -- classes -------------------------------------------------------------------------------------------------
def folders(root: Path, *names: str) -> Path:
    """Make folders, of which those that end in a slash have no file."""
    for name in names:
        (root / name).mkdir(parents=True)
        if not name.endswith("/"):
            (root / name / "1.png").write_bytes(b"an image")
    return root


@pytest.mark.parametrize("hidden", [".ipynb_checkpoints", ".cache", ".git/"])
def test_what_is_hidden_is_neither_class_nor_file(tmp_path: Path, hidden: str) -> None:
    root = folders(tmp_path, "a", "b", hidden, f"b/{hidden}")
    (root / "a" / "._1.png").write_bytes(b"of another system")
    assert class_folders("f", root, (".png",)) == (
        ["a", "b"], [(str(root / "a" / "1.png"), 0), (str(root / "b" / "1.png"), 1)],
    )  # fmt: skip


def test_a_root_below_a_hidden_folder_is_read(tmp_path: Path) -> None:
    assert class_folders("f", folders(tmp_path / ".data", "a"), (".png",)).classes == ["a"]


def test_a_folder_without_files_is_refused_as_in_torchvision_unless_classes_name_it(tmp_path: Path) -> None:
    root = folders(tmp_path, "a", "b/", "c")
    (root / "b" / "notes.txt").write_text("no image")
    with pytest.raises(FormatError, match="is a class and has files") as caught:
        ImageFolder(root)
    assert "in b" in caught.value.got and "classes=" in caught.value.hint
    found = class_folders("f", root, (".png",), ["c", "b", "a", "d"])
    assert found.classes == ["c", "b", "a", "d"] and [label for _, label in found.samples] == [0, 2]


def test_given_classes_number_every_split_alike(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    folders(tmp_path, "train/a", "train/b", "train/c", "test/b", "test/c")
    training = ImageFolder(tmp_path / "train")
    assert [label for _, label in ImageFolder(tmp_path / "test").samples] == [0, 1]
    test = ImageFolder(tmp_path / "test", classes=training.classes)
    assert test.classes == ["a", "b", "c"] and [label for _, label in test.samples] == [1, 2]


def test_folders_that_are_no_classes_and_lists_that_are_none_are_refused(tmp_path: Path) -> None:
    root = folders(tmp_path, "a", "b", "c")
    with pytest.raises(FormatError, match="among the classes") as caught:
        class_folders("f", root, (".png",), ["a", "c"])
    assert caught.value.got == "b"
    for classes, error in (("abc", DTypeError), ([1, 2], DTypeError), (["a", "a"], AttributeValueError),
                           ([], AttributeValueError)):  # fmt: skip
        with pytest.raises(error, match="classes"):
            class_folders("f", root, (".png",), classes)  # type: ignore[arg-type]


def test_classes_number_recordings_too(tmp_path: Path) -> None:
    sound = pytest.importorskip("soundfile")
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
        sound.write(tmp_path / name / "1.wav", np.zeros(8, np.float32), 8000)
    folder = AudioFolder(tmp_path, classes=["a", "b", "c"])
    assert [folder[k][1] for k in range(2)] == [1, 2]
    assert [pickle.loads(pickle.dumps(folder))[k][1] for k in range(2)] == [1, 2]  # noqa: S301


def test_worker_processes_get_a_folder_of_images_pickled(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).save(tmp_path / "a" / "1.png")
    folder = ImageFolder(tmp_path, size=(4, 4), mode="L")
    again = pickle.loads(pickle.dumps(folder))  # noqa: S301
    assert np.array_equal(again[0][0], folder[0][0]) and again.classes == ["a"]


@pytest.mark.parametrize("size", [16, (16,), (16, 16, 3), (0, 4), (1.5, 2), "ab"])
def test_a_size_is_a_height_and_a_width(tmp_path: Path, size: object) -> None:
    with pytest.raises(AttributeValueError, match="size is a height and a width"):
        ImageFolder(folders(tmp_path, "a"), size=size)  # type: ignore[arg-type]


def test_a_transform_of_torchvision_is_shown_its_place(tmp_path: Path) -> None:
    with pytest.raises(AttributeValueError, match="a pipeline transforms") as caught:
        ImageFolder(folders(tmp_path, "a"), transform=str)
    assert "map(On(0, transform)" in caught.value.hint
