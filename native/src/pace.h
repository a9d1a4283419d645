// How fast a host computes: a page that all ranks of an agent map, and that a fault writes from outside.
//
// A rank reads it when a compute operator starts, with one load; an operator under way keeps its duration.
// What an operator took is in its record, as always. The file (docs/formats.md §6) is made with 1000, as
// planned, and never shrinks or moves, so a mapping stays good. The simulator knows no pace.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "units.h"

namespace genie {

constexpr std::uint32_t kPlannedMilli = 1000;  // thousandths of the planned duration
constexpr std::uint32_t kLeastMilli = 100;
constexpr std::uint32_t kMostMilli = 1'000'000;
constexpr std::size_t kPaceBytes = 4096;

struct PacePage {
    char magic[8];
    std::uint32_t version;
    std::uint32_t reserved0;
    std::atomic<std::uint64_t> value;    // the stretch, and its complement in the upper half
    std::atomic<std::uint64_t> changes;  // how often it was set
    // By the ranks of the agent that runs or ran last, for operators whose stretch was not 1000.
    std::atomic<std::uint64_t> stretched_ops;
    std::atomic<std::int64_t> added_ns;
    std::uint8_t reserved1[kPaceBytes - 48];
};
static_assert(sizeof(PacePage) == kPaceBytes && sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(offsetof(PacePage, value) == 16 && offsetof(PacePage, added_ns) == 40);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // other processes share it

class PaceFile {
  public:
    // Makes the file at 1000, and folders above it, where they are missing. Throws Failure if it is none of
    // ours or cannot be mapped.
    static PaceFile open_or_make(const std::string& path);
    // Throws Failure where there is no such file.
    static PaceFile open(const std::string& path);

    PaceFile(PaceFile&& other) noexcept : page_(other.page_) { other.page_ = nullptr; }
    PaceFile(const PaceFile&) = delete;
    PaceFile& operator=(const PaceFile&) = delete;
    PaceFile& operator=(PaceFile&&) = delete;
    ~PaceFile();

    // None where the page holds what nobody can have set.
    std::optional<std::uint32_t> stretch_milli() const {
        const std::uint64_t value = page_->value.load(std::memory_order_relaxed);
        const auto milli = static_cast<std::uint32_t>(value);
        const bool whole = static_cast<std::uint32_t>(value >> 32) == ~milli;
        return whole && milli >= kLeastMilli && milli <= kMostMilli ? std::optional(milli) : std::nullopt;
    }

    // `milli` lies in [kLeastMilli, kMostMilli]; in effect from the next operator on.
    void set(std::uint32_t milli);

    // For an operator that starts now: makes its planned duration that of the moment's pace. False where the
    // page holds no pace.
    bool stretch(Nanos& duration) {
        const std::optional<std::uint32_t> milli = stretch_milli();
        if (!milli) return false;
        if (*milli == kPlannedMilli || duration.value == 0) return true;
        const Nanos planned = std::exchange(duration, scaled(duration, std::uint64_t{*milli} * 1000));
        page_->stretched_ops.fetch_add(1, std::memory_order_relaxed);
        page_->added_ns.fetch_add((duration - planned).value, std::memory_order_relaxed);
        return true;
    }

    // A new run counts from 0.
    void forget_counts() {
        page_->stretched_ops.store(0, std::memory_order_relaxed);
        page_->added_ns.store(0, std::memory_order_relaxed);
    }

    const PacePage& page() const { return *page_; }

  private:
    explicit PaceFile(PacePage* page) : page_(page) {}
    static PaceFile map(const std::string& path, int flags);

    PacePage* page_;
};

}  // namespace genie
