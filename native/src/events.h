// The event file of one rank (docs/formats.md §3): fixed-width records in a preallocated, mapped file.
//
// One writer, the rank's thread; the agent's main thread reads the progress counters. What is committed is
// readable after a kill -9. A record costs a copy of 64 bytes and a store.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "units.h"

namespace genie {

enum class EventType : std::uint16_t { kOperator = 1, kSent = 2, kReceived = 3, kIteration = 4, kTimer = 5 };
enum class RankState : std::uint32_t { kNew, kConnected, kRunning, kDone, kFailed, kAborted };

struct Event {
    EventType type;
    std::uint16_t channel;
    std::uint32_t iteration;
    std::uint32_t op;
    std::uint32_t peer;
    std::uint64_t bytes;
    std::int64_t t0_ns;
    std::int64_t t1_ns;
    std::int64_t t2_ns;
    std::uint32_t call_id;
    std::uint32_t message;
    std::uint64_t seq;
};
static_assert(sizeof(Event) == 64);

struct EventHeader {
    char magic[8];
    std::uint32_t version;
    std::uint32_t record_bytes;
    std::uint32_t rank;
    std::uint32_t world;
    std::uint64_t capacity;
    std::uint8_t reserved0[32];
    std::atomic<std::uint64_t> committed;
    std::atomic<std::uint64_t> dropped;
    std::atomic<std::uint32_t> iterations_done;
    std::atomic<std::uint32_t> state;
    std::atomic<std::uint64_t> ops_done;
    std::atomic<std::uint64_t> bytes_sent;
    std::atomic<std::uint64_t> bytes_received;
    std::atomic<std::uint64_t> messages_sent;
    std::atomic<std::uint64_t> messages_received;
    std::atomic<std::int64_t> start_mono_ns;
    std::atomic<std::int64_t> start_real_ns;
    std::atomic<std::int64_t> cpu_user_ns;
    std::atomic<std::int64_t> cpu_system_ns;
    std::uint8_t reserved1[4096 - 160];
};
static_assert(sizeof(EventHeader) == 4096 && sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(offsetof(EventHeader, committed) == 64 && offsetof(EventHeader, iterations_done) == 80);
static_assert(offsetof(EventHeader, ops_done) == 88 && offsetof(EventHeader, start_mono_ns) == 128);
static_assert(offsetof(EventHeader, cpu_user_ns) == 144);

class EventFile {
  public:
    // Creates the file and reserves its space. Throws Failure (kInternal; kOutOfMemory where there is no
    // room). An empty path keeps the records in memory only.
    EventFile(const std::string& path, std::uint32_t rank, std::uint32_t world, std::uint64_t capacity);
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;
    ~EventFile();

    void write(const Event& event) {
        if (committed_ == capacity_) {
            header_->dropped.store(++dropped_, std::memory_order_relaxed);
            return;
        }
        records_[committed_] = event;
        header_->committed.store(++committed_, std::memory_order_release);
    }

    EventHeader& header() { return *header_; }
    const EventHeader& header() const { return *header_; }
    const Event* records() const { return records_; }
    std::uint64_t committed() const { return committed_; }

  private:
    EventHeader* header_ = nullptr;
    Event* records_ = nullptr;
    std::uint64_t capacity_ = 0;
    std::uint64_t committed_ = 0;
    std::uint64_t dropped_ = 0;
    std::size_t mapped_bytes_ = 0;
};

}  // namespace genie
