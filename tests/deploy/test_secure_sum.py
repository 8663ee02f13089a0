"""Secure sums: exact whoever leaves when, nothing to see of a single vector, and no way around the rules."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from secure_groups import answer, authority, credentials, make_group, make_member, random_vectors, summed

from fedarena.client import masks
from fedarena.client.masks import Authority, add_mask, signing_with
from fedarena.client.secret_sharing import PRIME, holder_weights, join_shares, split_secret
from fedarena.client.secure_limits import usual_threshold
from fedarena.client.secure_messages import (
    MASK_KEY,
    SELF_MASK,
    Keys,
    Traffic,
    decode_all_keys,
    decode_revealed,
    encode_all_keys,
    encode_numbers,
    encode_parts,
    encode_revealed,
)
from fedarena.client.secure_sum import Session, confirmed_part
from fedarena.core.errors import SecureSumError
from fedarena.deploy.unmasking import PHASES, SecureGroup


def plain_sum(vectors: dict[int, Any], members: list[int]) -> Any:
    return sum((vectors[member] for member in members), np.zeros_like(next(iter(vectors.values()))))


# Shares of a secret


def is_prime(number: int) -> bool:
    """By Miller and Rabin, for the first primes as bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        x = pow(base, odd, number)
        if x in (1, number - 1):
            continue
        if all((x := x * x % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_field_has_room_for_every_secret() -> None:
    assert is_prime(PRIME)
    assert not any(is_prime(PRIME - lower) for lower in range(1, 298))


@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.data())
@settings(max_examples=30)
def test_any_holders_in_sufficient_number_have_the_secret(secret: bytes, threshold: int, data: Any) -> None:
    holders = data.draw(st.lists(st.integers(0, 2**32 - 2), min_size=threshold, max_size=12, unique=True))
    shares = split_secret(secret, threshold, holders)
    some = data.draw(st.permutations(holders))[:threshold]
    assert join_shares({holder: shares[holder] for holder in some}) == secret
    if threshold > 1:
        fewer = some[: threshold - 1]
        assert join_shares({holder: shares[holder] for holder in fewer}) != secret


def test_fewer_shares_fit_every_secret() -> None:
    """With one share less than it takes, there is a polynomial for each secret: whatever it is, shares look alike."""
    shares = split_secret(bytes(32), 3, range(3))
    for wanted in (0, 1, 12345, PRIME - 1):
        weights = holder_weights([0, 1, 2])
        known = sum(int.from_bytes(shares[holder], "big") * weights[holder] for holder in (0, 1))
        missing = (wanted - known) * pow(weights[2], -1, PRIME) % PRIME
        found = {0: shares[0], 1: shares[1], 2: missing.to_bytes(33, "big")}
        assert join_shares(found) == (None if wanted >= 1 << 256 else wanted.to_bytes(32, "big"))


def test_shares_are_spread_over_the_whole_field() -> None:
    drawn = [int.from_bytes(split_secret(bytes(32), 2, [6])[6], "big") / PRIME for _ in range(2000)]
    counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 40  # χ² of 9 degrees of freedom: once in 100,000 times


# The sum


@given(st.integers(3, 8), st.sampled_from([np.uint32, np.uint64]), st.data())
@settings(max_examples=25)
def test_the_sum_is_that_of_those_who_are_there(members: int, dtype: Any, data: Any) -> None:
    """Whoever leaves at whichever phase, as long as enough are left; else there is a sentence, and no sum."""
    numbers = data.draw(st.lists(st.integers(0, 40), min_size=members, max_size=members, unique=True))
    vectors = random_vectors(numbers, 5, dtype)
    leaves = {n: data.draw(st.sampled_from([None, None, None, *PHASES])) for n in numbers}
    threshold = data.draw(st.integers(members // 2 + 1, members))
    leaving = {number: phase for number, phase in leaves.items() if phase is not None}
    there = {
        phase: [n for n in numbers if n not in leaving or leaving[n] not in PHASES[: i + 1]]
        for i, phase in enumerate(PHASES)
    }
    enough = len(there["advertise"]) >= 3 and all(len(of_phase) >= threshold for of_phase in there.values())
    # A threshold must be more than half of those who advertise keys, which holds if it is of all.
    if not enough:
        with pytest.raises(SecureSumError, match=r"Only .* and it takes|Only .* and a secure sum needs"):
            summed(vectors, leaving, threshold)
        return
    total = summed(vectors, leaving, threshold)
    assert total.members == sorted(there["mask"])
    np.testing.assert_array_equal(total.words, plain_sum(vectors, total.members))


def test_a_mask_is_the_key_stream_of_aes() -> None:
    """By hand: block after block of AES-256 of a counter; also across the pieces in which it is made."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    seed, length = bytes(range(32)), (1 << 18) + 5
    vector = np.zeros(length, np.uint32)
    add_mask(vector, seed, 1)
    blocks = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    for block in (0, 1, (1 << 16) + 1):
        wanted = np.frombuffer(blocks.update(block.to_bytes(16, "big")), np.uint32)
        found = vector[4 * block : 4 * block + 4]
        np.testing.assert_array_equal(found, wanted[: len(found)])
    add_mask(vector, seed, -1)
    assert not vector.any()


def test_what_the_server_sees_of_one_vector_is_uniform() -> None:
    """Masked zeros: every byte and every bit of the words is as likely as any other, and none depends on the next."""
    length = 20_000
    session = Session("uniform", 3, length)
    group, members = make_group(session, [0, 1, 2])
    for number, member in members.items():
        group.take(number, member.advertise())
    for number, message in group.close().items():
        group.take(number, members[number].share(message))
    incoming = group.close()
    zeros = np.zeros(length, np.uint32)
    seen = [np.frombuffer(members[number].mask(zeros, incoming[number]), np.uint32) for number in (0, 1)]
    for words in (*seen, seen[0] - seen[1], seen[0] ^ seen[1]):
        for shift in (0, 8, 16, 24):
            counts = np.bincount((words >> shift) & 255, minlength=256)
            expected = length / 256
            assert ((counts - expected) ** 2 / expected).sum() < 370  # χ² of 255 degrees: once in 200,000 times
        bits = np.unpackbits(words.view(np.uint8)).astype(float) * 2 - 1
        assert abs(bits.mean()) < 5 / np.sqrt(bits.size)
        assert abs((bits[1:] * bits[:-1]).mean()) < 5 / np.sqrt(bits.size)


def test_masks_are_others_in_every_session() -> None:
    seen = []
    for name in ("round 1", "round 2"):
        session = Session(name, 3, 4)
        keys = [bytes([n]) * 32 for n in (1, 2)]
        seen.append(masks.agreed_key(keys[0], masks.public_key(keys[1]), session.text, "mask of 0 and 1"))
        assert seen[-1] == masks.agreed_key(keys[1], masks.public_key(keys[0]), session.text, "mask of 0 and 1")
    assert seen[0] != seen[1]


# Rules


def at_phase(phase: str, numbers: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[SecureGroup, Any, Any, Any]:
    """A group when the messages of a phase are about to be answered."""
    session = Session("rules", usual_threshold(len(numbers)), 4)
    group, members = make_group(session, list(numbers))
    vectors = random_vectors(list(numbers), 4)
    incoming = dict.fromkeys(numbers, b"")
    while group.phase != phase:
        for number, message in incoming.items():
            group.take(number, answer(members[number], group.phase, message, vectors[number]))
        incoming = group.close()
    return group, members, vectors, incoming


kept_at_phase = lru_cache(at_phase)


def test_nobody_reveals_both_secrets_of_a_member() -> None:
    """A server that tells some that a member is there, and others that it has left, gets neither."""
    _, members, _, incoming = at_phase("confirm")
    without = encode_numbers([0, 1, 2])
    signed = {n: members[n].confirm(without if n == 0 else incoming[n]) for n in (0, 1, 2)}
    with pytest.raises(SecureSumError, match=r"Member [12] has not signed the list .* that this device has"):
        members[0].unmask(encode_parts(signed))
    with pytest.raises(SecureSumError, match="Only 1 members have signed who is still there"):
        members[0].unmask(encode_parts({0: signed[0]}))


def test_no_phase_has_two_answers() -> None:
    _, members, _, incoming = at_phase("confirm")
    first = members[0].confirm(incoming[0])
    assert members[0].confirm(incoming[0]) == first  # the answer was lost
    with pytest.raises(SecureSumError, match="asks for another answer in the phase 'confirm', which has one"):
        members[0].confirm(encode_numbers([0, 1, 2]))


def test_no_phase_comes_before_its_time() -> None:
    member = make_member(Session("early", 3, 4), 0)
    with pytest.raises(SecureSumError, match="asks for the phase 'mask' before 'share'"):
        member.mask(np.zeros(4, np.uint32), encode_parts({}))
    _, members, _, _ = at_phase("mask")
    with pytest.raises(SecureSumError, match="asks for the phase 'unmask' before 'confirm'"):
        members[0].unmask(encode_parts({}))


def test_a_revealed_share_is_of_the_secret_that_was_asked_for() -> None:
    group, members, _, incoming = at_phase("unmask")
    message = members[0].unmask(incoming[0])
    assert {kind for kind, _ in decode_revealed(message).values()} == {SELF_MASK}
    other = {n: (MASK_KEY, share) for n, (_, share) in decode_revealed(message).items()}
    with pytest.raises(SecureSumError, match="Member 0 reveals other shares than were asked for"):
        group.take(0, encode_revealed(other))


def test_a_wrong_share_is_found_out() -> None:
    """One who lies is left out if there are enough others; if not, there is no sum rather than a wrong one."""
    for liars, is_summed in (((1,), True), ((1, 2), False)):
        group, members, vectors, incoming = at_phase("unmask")
        for number in range(4):
            revealed = decode_revealed(members[number].unmask(incoming[number]))
            if number in liars:
                revealed[3] = SELF_MASK, bytes(33)
            group.take(number, encode_revealed(revealed))
        if is_summed:
            np.testing.assert_array_equal(group.total().words, plain_sum(vectors, list(range(4))))
        else:
            with pytest.raises(SecureSumError, match="do not fit together; nothing is learned"):
                group.total()


def changed(message: bytes, place: int) -> bytes:
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


def test_sealed_shares_that_were_changed_are_refused() -> None:
    _, members, vectors, incoming = at_phase("mask")
    with pytest.raises(SecureSumError, match="The shares of member 1 were changed on their way"):
        members[0].mask(vectors[0], changed(incoming[0], 20))


def test_keys_must_be_signed() -> None:
    group, members, _, incoming = at_phase("share")
    keys = {one.number: one for one in decode_all_keys(incoming[0])}
    false = Keys(1, masks.public_key(b"x" * 32), keys[1].mask_key, keys[1].signature, keys[1].certificate)
    listed = encode_all_keys((keys | {1: false}).values())
    with pytest.raises(SecureSumError, match="The keys of member 1 are not signed by the owner of its certificate"):
        members[0].share(listed)
    stranger = make_member(Session("rules", 3, 5), 2)  # of another session
    fresh, _ = make_group(group.session, [0, 1, 2, 3])
    with pytest.raises(SecureSumError, match="The keys of member 2 are not signed"):
        fresh.take(2, stranger.advertise())


def test_members_must_be_of_the_authority_and_no_two_the_same() -> None:
    from secure_groups import SmallAuthority

    session = Session("rules", 3, 4)
    _, members, _, incoming = at_phase("share")
    keys = decode_all_keys(incoming[0])
    other = SmallAuthority()
    certificate, key = other.issue("device 9", credentials(9)[1]), credentials(9)[1]
    foreign = masks_of(session, 9, certificate, key)
    with pytest.raises(SecureSumError, match="certificate is not from this federation's authority"):
        members[0].share(encode_all_keys([*keys, foreign]))
    twice = masks_of(session, 9, *credentials(1))
    with pytest.raises(SecureSumError, match="lists a member twice"):
        members[0].share(encode_all_keys([*keys, twice]))
    with pytest.raises(SecureSumError, match="does not pass on the keys that this device advertises"):
        members[0].share(encode_all_keys(keys[1:]))


def masks_of(session: Session, number: int, certificate: bytes, key: Any) -> Keys:
    """Keys that somebody advertises, properly signed."""
    from fedarena.client.secure_messages import decode_keys
    from fedarena.client.secure_sum import Member

    member = Member(session, number, certificate, signing_with(key), Authority(authority().certificate))
    return decode_keys(member.advertise())


def test_a_server_cannot_choose_a_threshold_that_protects_nobody() -> None:
    session = Session("low", 2, 4)
    members = [make_member(session, number) for number in range(4)]
    keys = encode_all_keys([decode_all_keys(b"\1\0" + member.advertise())[0] for member in members])
    with pytest.raises(SecureSumError, match="A threshold of 2 does not protect a group of 4: it must be from 3 to 4"):
        members[0].share(keys)
    with pytest.raises(SecureSumError, match="Only 2 members advertise keys, and a secure sum needs at least 3"):
        members[0].share(encode_all_keys(decode_all_keys(keys)[:2]))


def test_a_signature_under_another_list_is_refused_by_the_server() -> None:
    group, _, _, _ = at_phase("confirm")
    sign = signing_with(credentials(0)[1])
    for message in (sign(confirmed_part(group.session, [0, 1, 2])), b"", bytes(64)):
        with pytest.raises(SecureSumError, match="Member 0 has not signed the list"):
            group.take(0, message)


@pytest.mark.parametrize("phase", PHASES)
def test_messages_of_the_wrong_length_change_nothing(phase: str) -> None:
    group, members, vectors, incoming = at_phase(phase)
    right = answer(members[0], phase, incoming[0], vectors[0])
    for message in (right[:-1], right + b"\0", b""):
        with pytest.raises(SecureSumError):
            group.take(0, message)
    assert not group.answered
    group.take(0, right)
    group.take(0, right)  # the receipt was lost
    assert group.answered == {0}
    with pytest.raises(SecureSumError, match="Nobody waits for member 9"):
        group.take(9, right)


@given(st.sampled_from(PHASES), st.binary(max_size=300))
@settings(max_examples=60)
def test_nonsense_is_refused_with_a_sentence(phase: str, message: bytes) -> None:
    assume(phase != "mask" or len(message) != 16)  # which is a masked vector like any other
    group, members, vectors, _ = kept_at_phase(phase)
    with pytest.raises(SecureSumError):
        group.take(0, message)
    if phase != "advertise":
        with pytest.raises(SecureSumError):
            answer(members[0], phase, message, vectors[0])


def test_sizes_are_those_of_real_messages() -> None:
    numbers = [3, 5, 6, 8, 11]
    session = Session("sizes", 4, 4)
    group, members = make_group(session, numbers)
    up: dict[str, int] = {}
    down: dict[str, int] = {}
    incoming = dict.fromkeys(numbers, b"")
    for phase in PHASES:
        for number, message in incoming.items():
            sent = answer(members[number], phase, message, np.zeros(4, np.uint32))
            group.take(number, sent)
            up[phase], down[phase] = len(sent), len(message)
        if phase != PHASES[-1]:
            incoming = group.close()
    traffic = Traffic(len(numbers), len(credentials(numbers[-1])[0]))
    lengths = sum(len(credentials(number)[0]) for number in numbers) - len(numbers) * traffic.certificate_bytes
    assert traffic.keys_up == up["advertise"] + up["share"]
    assert traffic.keys_down + lengths == down["share"] + down["mask"]
    assert traffic.unmasking_up == up["confirm"] + up["unmask"]
    assert traffic.unmasking_down == down["confirm"] + down["unmask"]
