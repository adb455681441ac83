"""Folders of images: pixels of more than 8 bits, and images that are stored on their side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stratal.data import BadRowError, ImageFolder, Pipeline

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
