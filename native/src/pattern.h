// The payload of a run with verify: 64-bit words that depend on call, iteration, message and place.
#pragma once

#include <cstdint>
#include <cstring>

#include "transport.h"

namespace genie {

class Pattern {
  public:
    explicit Pattern(const Frame& frame)
        : seed_(mix(mix(std::uint64_t{frame.call_id} << 32 | frame.iteration) ^ frame.message)) {}

    // Writes bytes [offset, offset + size) of the payload.
    void fill(std::uint8_t* out, std::uint64_t offset, std::size_t size) const {
        while (size > 0) {
            const std::uint64_t word = word_at(offset / 8);
            const std::size_t skip = offset % 8;
            const std::size_t taken = size < 8 - skip ? size : 8 - skip;
            std::memcpy(out, reinterpret_cast<const std::uint8_t*>(&word) + skip, taken);
            out += taken;
            offset += taken;
            size -= taken;
        }
    }

    // The place of the first byte that differs, or `size`.
    std::size_t compare(const std::uint8_t* data, std::uint64_t offset, std::size_t size) const {
        for (std::size_t at = 0; at < size;) {
            const std::uint64_t word = word_at((offset + at) / 8);
            const std::size_t skip = (offset + at) % 8;
            const std::size_t taken = size - at < 8 - skip ? size - at : 8 - skip;
            const auto* expected = reinterpret_cast<const std::uint8_t*>(&word) + skip;
            if (std::memcmp(data + at, expected, taken) != 0) {
                while (data[at] == *expected) ++at, ++expected;
                return at;
            }
            at += taken;
        }
        return size;
    }

  private:
    static std::uint64_t mix(std::uint64_t x) {
        x ^= x >> 33;
        x *= 0xff51afd7ed558ccdULL;
        x ^= x >> 33;
        x *= 0xc4ceb9fe1a85ec53ULL;
        return x ^ x >> 33;
    }
    std::uint64_t word_at(std::uint64_t index) const { return (seed_ + index) * 0x9e3779b97f4a7c15ULL; }

    std::uint64_t seed_;
};

}  // namespace genie
