#include "lib/base/sha256.h"

#include <string>

#include <doctest/doctest.h>

namespace diptych {
namespace {

std::string hex_of(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

TEST_CASE("sha256: the vectors of FIPS 180-4") {
  CHECK(hex_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex_of(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: any cut into updates gives the same hash, at every length around a block") {
  const std::string text(200, 'x');
  // hashlib.sha256(b"x" * n) for the lengths at which the padding changes shape.
  CHECK(hex_of(text.substr(0, 55)) ==
        "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  CHECK(hex_of(text.substr(0, 56)) ==
        "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  CHECK(hex_of(text.substr(0, 63)) ==
        "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  CHECK(hex_of(text.substr(0, 64)) ==
        "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  for (std::size_t length = 0; length <= text.size(); ++length) {
    CAPTURE(length);
    Sha256 hash;
    for (std::size_t at = 0, step = 1; at < length; at += step++) {
      hash.update(std::string_view(text).substr(0, length).substr(at, step));
    }
    CHECK(hash.finish_hex() == hex_of(text.substr(0, length)));
  }
}

}  // namespace
}  // namespace diptych
