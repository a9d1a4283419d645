// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), so that the agent needs no library. For tokens of a few
// bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace genie {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
  public:
    void update(std::span<const std::uint8_t> data);
    Digest finish();

  private:
    void block(const std::uint8_t* data);

    std::uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::uint8_t buffer_[64] = {};
    std::size_t buffered_ = 0;
    std::uint64_t total_ = 0;
};

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> message);

// In time that does not depend on where they differ.
bool same_digest(std::span<const std::uint8_t, 32> a, std::span<const std::uint8_t, 32> b);

inline std::span<const std::uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace genie
