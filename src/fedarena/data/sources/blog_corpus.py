"""The Blog Authorship Corpus (Schler et al., 2006): posts by the 19,320 bloggers who wrote them; predict the next word.

The corpus has a file for every blogger, ``ID.gender.age.industry.sign.xml``, in which dates and posts alternate. It is
XML by name only (signs are not escaped, bytes are in several encodings), so posts are what is between ``<post>`` and
``</post>``. FedScale's tarball has folders train and test with a text for every blogger.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.packed import members
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.text_folders import TextFolders, decoded, texts_of_folders
from fedarena.data.by_client.texts import Length, TextFiles, VocabularySize, build_next_words, words_of
from fedarena.data.raw.files import RawFile
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction

_POST = re.compile(r"<post>(.*?)</post>", re.DOTALL)
_BLOG = re.compile(r"(?:^|/)\d+\.[^/]*\.xml$")
_ARCHIVES = ("blogs.zip", "blogs.tar.gz", "blogs.tar.xz")


class BlogFiles(TextFolders):
    """The corpus in any archive, in a folder, or FedScale's folders."""

    def found(self, given: str | None) -> dict[str, Path]:
        """One of them."""
        known = super().found(given)
        archives = [path for path in sorted(self.folder(given).glob("blogs*")) if path.is_dir() or path.suffix in _ENDS]
        return known or ({"blogs": archives[0]} if archives else {})


_ENDS = (".zip", ".gz", ".xz", ".bz2", ".tar")
FILES = BlogFiles(
    "blog_corpus",
    "the Blog Authorship Corpus",
    {"blogs": RawFile(_ARCHIVES[0], unpacked="blogs", other_names=_ARCHIVES[1:])},
    "or FedScale's folders train and test (blog.tar.gz); https://u.cs.biu.ac.il/~koppel/BlogCorpus.htm has the corpus",
    one_is_enough=True,
    tarballs=("blog.tar.gz",),
)


@FEDERATIONS.register("blog_corpus")
@cached_source(version=1, reads=FILES)
def blog_corpus(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    vocabulary: VocabularySize = 10_000,
    sequence_length: Length = 64,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Posts of bloggers, of which the next word is to be predicted, from the files in `folder`; a client is a blogger.

    A post (in FedScale's form: everything that somebody wrote) becomes one sample or more, of ``sequence_length + 1``
    words; `minimum_samples` counts posts. The `vocabulary` has the most frequent words of the training samples.
    """
    found = FILES.find(folder)
    folders = FILES.folders(folder)
    texts = texts_of_folders(folders) if folders else TextFiles.of([found["blogs"]], _posts)
    build_next_words(
        build,
        texts,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        vocabulary,
        sequence_length,
    )


def _posts(path: Path) -> Iterator[Record]:
    seen: set[str] = set()
    for member in members(path, _BLOG):
        blogger = member.name.rpartition("/")[2].partition(".")[0]
        if blogger in seen:
            raise BadInputError(f"{path} has two files of the blogger {blogger}; the second is {member.name}")
        seen.add(blogger)
        posts = [html.unescape(post) for post in _POST.findall(decoded(member))]
        for words in filter(None, map(words_of, posts)):
            yield Record(blogger, (words,), member.done)
