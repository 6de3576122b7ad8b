"""Generates Pathfinder images, labelled 1 if two discs (markers) lie on the same dashed contour, else 0.

An image has two target contours and several short distractors, each a chain of dashes (paddles), and two markers
(Linsley et al. 2018, https://arxiv.org/abs/1805.08315; settings of Tay et al. 2021, https://arxiv.org/abs/2011.04006).
The distribution is that of the public generator (drewlinsley/pathfinder, commit ab9c130). That one draws, resizes and
dilates whole images for each paddle; this one pastes stamps that are rendered once for each orientation.

Coordinates are (row, column), angles radians with rows as the sine.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import grey_dilation, maximum_filter

from subquad.utils.errors import UserError

VERSION = 1
"""Part of the cache's name. Increase it when the same seed no longer gives the same images."""

_FREE = 0.3  # the maximum occupancy where a contour can start
_COLLISION = 1.8  # the limit of the sum of two footprints
_TRIES = 3  # for each paddle
_CONTOUR_TRIES = 5  # for each distractor


@dataclass(frozen=True, slots=True)
class Contours:
    """Settings of the generator; lengths are in pixels.

    size: side of the image. border: width of the blocked frame. paddle, thickness: length and thickness of a dash.
    margins: gaps between dashes; one is drawn for each image. antialias: factor of the finer grid for drawing.
    seed_distance: distance between the starts of the two contours. marker: radius of a marker. length,
    distractor_length: dashes of a contour. continuity: preference for going straight on. contour_contrasts,
    paddle_contrasts: brightness factors; one is drawn for each contour or paddle.
    """

    size: int = 32
    border: int = 1
    paddle: int = 2
    thickness: float = 0.5
    margins: tuple[int, ...] = (1,)
    antialias: int = 2
    seed_distance: int = 7
    marker: float = 1.5
    length: int = 14
    distractor_length: int = 4
    distractors: int = 5
    continuity: float = 1.0
    contour_contrasts: tuple[float, ...] = (2.0,)
    paddle_contrasts: tuple[float, ...] = (0.75,)


_LARGE = Contours(paddle=5, continuity=1.8, paddle_contrasts=(1.0,))
SETTINGS = {
    32: Contours(),
    64: replace(_LARGE, size=64, thickness=1, seed_distance=12, marker=2.5, contour_contrasts=(0.8,)),
    128: replace(
        _LARGE, size=128, thickness=1.5, margins=(2, 3), seed_distance=20, marker=3, distractors=8,
        contour_contrasts=(0.9,),
    ),
    256: replace(
        _LARGE, size=256, border=22, thickness=2, margins=(3,), seed_distance=27, marker=5, distractors=7,
        contour_contrasts=(1.0,),
    ),
}  # fmt: skip
"""The settings of the Long Range Arena's hard set (contour_length_14) at each size."""

Point = tuple[int, int]


def draw(settings: Contours, seed: int, number: int) -> tuple[np.ndarray, int]:
    """Image `number` of a seed, uint8 [size, size], and its label: 1 if both markers lie on one contour."""
    rng = np.random.default_rng([seed, number])
    label = int(rng.integers(2))
    tools = _tools(settings, settings.margins[rng.integers(len(settings.margins))])
    while (drawn := _two_contours(tools, rng)) is None:
        pass
    image, occupied, starts, ends = drawn
    for _ in range(settings.distractors):
        for _ in range(_CONTOUR_TRIES):
            if _distractor(tools, image, occupied, rng):
                break
    first = int(rng.integers(2))
    last = first if label else 1 - first
    for place in (starts[first], ends[last]):
        np.maximum(image, _disc(settings, place), out=image)
    image -= image.min()
    return (image * (255 / image.max()) + 0.5).astype(np.uint8), label


@dataclass(frozen=True)
class _Stamp:
    """The image and the footprint (the occupied pixels) of a paddle that starts in the middle."""

    paint: np.ndarray
    footprint: np.ndarray


class _Tools:
    """Cached stamps, candidates and weights, which depend only on the settings and the margin of an image."""

    def __init__(self, settings: Contours, margin: int) -> None:
        if (settings.thickness * settings.antialias) % 1:
            raise UserError(
                f"Pathfinder cannot draw lines of {settings.thickness} pixels on a grid {settings.antialias} times "
                "finer; choose a thickness that is a whole number there."
            )
        self.settings, self.margin = settings, margin
        self.reach = settings.paddle + math.ceil(settings.thickness) + margin
        self.near = np.argwhere(_round(margin)) - margin
        self.stamps: dict[float, _Stamp] = {}
        radius = settings.paddle + margin
        angles = np.arange(0, 360, 360 / (2 * np.pi * radius)) * np.pi / 180
        steps = np.floor(np.stack([radius * np.sin(angles), radius * np.cos(angles)], 1)).astype(int)
        self.steps = np.unique(steps, axis=0)
        self.headings = np.arctan2(self.steps[:, 0], self.steps[:, 1])
        self.weights: dict[float, np.ndarray] = {}
        self.starts: dict[float, np.ndarray] = {}
        self.places: dict[float, np.ndarray] = {}
        self.neighbourhoods: dict[Point, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.blocked = np.zeros((settings.size, settings.size))
        for edge in (np.s_[: settings.border], np.s_[-settings.border :]):
            self.blocked[edge] = self.blocked[:, edge] = 1

    def stamp(self, heading: float) -> _Stamp:
        """The stamp of a paddle with this heading."""
        if heading not in self.stamps:
            self.stamps[heading] = self._render(heading)
        return self.stamps[heading]

    def weight(self, heading: float) -> np.ndarray:
        """The weight of each candidate: cos² of its turn times the continuity."""
        if heading not in self.weights:
            turn = np.abs(self.headings - heading)
            turn = np.minimum(turn, 2 * np.pi - turn) * self.settings.continuity
            self.weights[heading] = np.cos(np.minimum(turn, np.pi / 2)) ** 2
        return self.weights[heading]

    def start_shape(self, heading: float) -> np.ndarray:
        """The mask of pixels around its start that a first paddle needs free."""
        if heading not in self.starts:
            half = self.settings.paddle + self.margin
            canvas = np.zeros((2 * half + 1, 2 * half + 1))
            _paste(canvas, self.stamp(heading).footprint, (half + 1, half + 1))
            self.starts[heading] = canvas == 1
        return self.starts[heading]

    def neighbourhood(self, pivot: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates for a head around a pivot, whether each is inside, and flat indices of the pixels around each."""
        if pivot not in self.neighbourhoods:
            size, heads = self.settings.size, self.steps + pivot
            row, column = (heads[:, None] + self.near).clip(0, size - 1).transpose(2, 0, 1)
            inside = np.asarray(((heads >= 0) & (heads < size)).all(1))
            self.neighbourhoods[pivot] = heads, inside, row * size + column
        return self.neighbourhoods[pivot]

    def first_places(self, heading: float) -> np.ndarray:
        """The places where the first contour can start with this heading: in the middle of the empty image."""
        if heading not in self.places:
            s, middle = self.settings, np.ones_like(self.blocked)
            inner = slice(2 * s.seed_distance, s.size - 2 * s.seed_distance)
            middle[inner, inner] = self.blocked[inner, inner]
            self.places[heading] = self.free_places(heading, middle)
        return self.places[heading]

    def free_places(self, heading: float, occupied: np.ndarray) -> np.ndarray:
        """The places where a first paddle with this heading is free.

        A heading whose start shape lies on one side of the start only has no free places: at that edge of the image the
        public generator takes the minimum over no pixels and rejects the whole mask. This affects the number of
        distractors.
        """
        wide = maximum_filter(occupied, footprint=self.start_shape(heading), mode="constant", cval=-1)
        return np.argwhere(wide <= _FREE) if wide.min() >= 0 else np.empty((0, 2), int)

    def _render(self, heading: float) -> _Stamp:
        s, middle = self.settings, self.reach * self.settings.antialias
        canvas = Image.new("L", (2 * middle + 1, 2 * middle + 1))
        row, column = ahead((middle, middle), heading, s.paddle * s.antialias)
        width = round(s.thickness * s.antialias)
        ImageDraw.Draw(canvas).line([(middle, middle), (column, row)], fill=255, width=width)
        wide = grey_dilation(np.asarray(canvas), footprint=_round(self.margin * s.antialias), mode="constant")
        side = 2 * self.reach + 1
        return _Stamp(*(_shrink(large, side) for large in (np.asarray(canvas), wide)))


@cache
def _tools(settings: Contours, margin: int) -> _Tools:
    return _Tools(settings, margin)


def ahead(place: Point, heading: float, distance: float) -> Point:
    """The place at this heading and distance, rounded up as in the public generator."""
    return math.ceil(place[0] + distance * math.sin(heading)), math.ceil(place[1] + distance * math.cos(heading))


@dataclass
class _Contour:
    """The growing end of a contour: pivot, heading and footprint of the last paddle."""

    pivot: Point
    heading: float
    footprint: np.ndarray
    place: Point
    """The place of the footprint: the start of the first paddle, the head of later ones."""


def _start(tools: _Tools, tail: Point, heading: float) -> _Contour | None:
    """A first paddle, or None if its head or pivot is outside of the image."""
    s = tools.settings
    head = ahead(tail, heading, s.paddle)
    pivot = ahead(head, _back(heading), s.paddle + tools.margin)
    inside = all(0 <= place < s.size for place in (*head, *pivot))
    return _Contour(pivot, heading, tools.stamp(heading).footprint, tail) if inside else None


def _extend(
    tools: _Tools, contour: _Contour, image: np.ndarray, occupied: np.ndarray, contrast: float, rng: np.random.Generator
) -> bool:
    """Adds one paddle to the image and the previous one to the occupancy; returns False if no paddle fits."""
    s = tools.settings
    pivot = ahead(contour.pivot, contour.heading, s.paddle + 2 * tools.margin)
    heads, inside, around = tools.neighbourhood(pivot)
    weights = tools.weight(contour.heading) * inside * (1 - occupied.take(around).max(1))
    cumulative = weights.cumsum()
    if cumulative[-1] < 1e-4:
        return False
    for _ in range(_TRIES):
        choice = min(int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")), len(heads) - 1)
        head, heading = (int(heads[choice, 0]), int(heads[choice, 1])), float(tools.headings[choice])
        stamp = tools.stamp(_back(heading))
        target, source = _overlap(s.size, stamp.footprint, head)
        if (occupied[target] + stamp.footprint[source]).max() < _COLLISION:
            break
    else:
        return False
    image[target] = np.maximum(image[target], contrast * stamp.paint[source])
    _paste(occupied, contour.footprint, contour.place)
    contour.pivot, contour.heading, contour.footprint, contour.place = pivot, heading, stamp.footprint, head
    return True


def _two_contours(
    tools: _Tools, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[Point], list[Point]] | None:
    """The image, the occupancy, and the starts and ends of both targets; None if one could not be finished."""
    s = tools.settings
    contrasts = rng.permutation([*s.contour_contrasts, *s.contour_contrasts])[:2]
    contours = _two_starts(tools, rng)
    if contours is None:
        return None
    image, occupied = np.zeros((s.size, s.size)), tools.blocked.copy()
    for contour, contrast in zip(contours, contrasts, strict=True):
        _paste(image, _pick(s.paddle_contrasts, rng) * contrast * tools.stamp(contour.heading).paint, contour.place)
    starts = [contour.place for contour in contours]
    for _ in range(s.length - 1):
        factor = _pick(s.paddle_contrasts, rng)
        for contour, contrast in zip(contours, contrasts, strict=True):
            if not _extend(tools, contour, image, occupied, factor * contrast, rng):
                return None
    _paste(occupied, contours[1].footprint, contours[1].place)
    return image, occupied, starts, [contour.place for contour in contours]


def _two_starts(tools: _Tools, rng: np.random.Generator) -> list[_Contour] | None:
    """The first paddles of both targets: one in the middle of the image, the other `seed_distance` away from it."""
    first = _free_start(tools, tools.first_places, rng)
    if first is None:
        return None
    second = next((c for c in (_start_beside(tools, first.place, rng) for _ in range(_TRIES)) if c is not None), None)
    return None if second is None else [first, second]


def _free_start(tools: _Tools, places_of: Callable[[float], np.ndarray], rng: np.random.Generator) -> _Contour | None:
    """A first paddle with a random heading at a random free place, or None."""
    for _ in range(_TRIES):
        heading = _any_heading(rng)
        places = places_of(heading)
        if not len(places):
            return None
        row, column = places[rng.integers(len(places))]
        contour = _start(tools, (int(row), int(column)), heading)
        if contour is not None:
            return contour
    return None


def _start_beside(tools: _Tools, place: Point, rng: np.random.Generator) -> _Contour | None:
    """A first paddle with a random heading at `seed_distance` from the place in a random direction."""
    heading, direction = _any_heading(rng), _any_heading(rng)
    distance = tools.settings.seed_distance
    row, column = place[0] + distance * math.sin(direction), place[1] + distance * math.cos(direction)
    return _start(tools, (round(row), round(column)), heading)


def _distractor(tools: _Tools, image: np.ndarray, occupied: np.ndarray, rng: np.random.Generator) -> bool:
    """Adds a short contour to both arrays, or leaves them unchanged and returns False."""
    s = tools.settings
    if np.count_nonzero(occupied <= _FREE) < 0.01 * occupied.size:
        return False
    framed = occupied.copy()
    framed[0] = framed[-1] = framed[:, 0] = framed[:, -1] = 1
    contrast = _pick(s.contour_contrasts, rng)
    contour = _free_start(tools, partial(tools.free_places, occupied=framed), rng)
    if contour is None:
        return False
    new_image, new_occupied = image.copy(), occupied.copy()
    _paste(new_image, contrast * tools.stamp(contour.heading).paint, contour.place)
    for _ in range(s.distractor_length - 1):
        if not _extend(tools, contour, new_image, new_occupied, _pick(s.contour_contrasts, rng), rng):
            return False
    _paste(new_occupied, contour.footprint, contour.place)
    image[:], occupied[:] = new_image, new_occupied
    return True


def _overlap(size: int, stamp: np.ndarray, place: Point) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """The slices of the image that a stamp covers, and the slices of the stamp inside the image."""
    reach = len(stamp) // 2
    low = [max(at - reach, 0) for at in place]
    high = [min(at + reach + 1, size) for at in place]
    target = (slice(low[0], high[0]), slice(low[1], high[1]))
    source = tuple(slice(a - at + reach, b - at + reach) for a, b, at in zip(low, high, place, strict=True))
    return target, (source[0], source[1])


def _paste(canvas: np.ndarray, stamp: np.ndarray, place: Point) -> None:
    target, source = _overlap(len(canvas), stamp, place)
    canvas[target] = np.maximum(canvas[target], stamp[source])


def _disc(settings: Contours, place: Point) -> np.ndarray:
    fine = settings.antialias
    rows, columns = (np.arange(settings.size * fine) - at * fine for at in place)
    disc = rows[:, None] ** 2 + columns**2 <= (settings.marker * fine) ** 2
    return _shrink(np.uint8(255) * disc, settings.size)


def _shrink(image: np.ndarray, side: int) -> np.ndarray:
    """Resizes an 8-bit image to a smaller size and scales it to 0..1."""
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS)) / 255


def _round(radius: int) -> np.ndarray:
    rows, columns = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return rows**2 + columns**2 <= radius**2


def _any_heading(rng: np.random.Generator) -> float:
    return float(rng.integers(-180, 180)) * math.pi / 180


def _back(heading: float) -> float:
    return heading + math.pi if heading < 0 else heading - math.pi


def _pick(values: tuple[float, ...], rng: np.random.Generator) -> float:
    return values[rng.integers(len(values))]
