// Vectors of FIPS 180-4 (the examples NIST publishes with it) and of RFC 4231.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "sha256.h"

namespace genie {
namespace {

std::string hex(const Digest& digest) {
    std::string text;
    for (const std::uint8_t byte : digest) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::string sha256(const std::string& text) {
    Sha256 hash;
    hash.update(bytes_of(text));
    return hex(hash.finish());
}

TEST_CASE("SHA-256 of the published examples") {
    CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(sha256(std::string(1'000'000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the data is cut") {
    const std::string text(300, 'x');
    for (const std::size_t cut : {1, 55, 56, 63, 64, 65, 128, 299}) {
        Sha256 hash;
        hash.update(bytes_of(text.substr(0, cut)));
        hash.update(bytes_of(text.substr(cut)));
        CHECK(hex(hash.finish()) == sha256(text));
    }
}

TEST_CASE("HMAC-SHA-256 of RFC 4231") {
    const auto mac = [](const std::string& key, const std::string& data) {
        return hex(hmac_sha256(bytes_of(key), bytes_of(data)));
    };
    CHECK(mac(std::string(20, '\x0b'), "Hi There") ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(mac("Jefe", "what do ya want for nothing?") ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(mac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    CHECK(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("digests are compared whole") {
    Digest a{};
    Digest b{};
    CHECK(same_digest(a, b));
    b[31] = 1;
    CHECK_FALSE(same_digest(a, b));
}

}  // namespace
}  // namespace genie
