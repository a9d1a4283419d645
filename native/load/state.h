// The folder of one load: a lock that its sender holds for life, and a page of what it is told and has sent.
//
// The lock is the truth of whether a sender lives: the kernel lets go of it however the sender dies. The page
// outlives the sender and is replaced, whole, by the next start, which carries the totals on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "descriptor.h"
#include "units.h"

namespace genie {

constexpr std::size_t kMostDestinations = 64;
constexpr std::size_t kLoadPageBytes = 4096;

enum class LoadEnd : std::uint32_t { kNone = 0, kTimeUp = 1, kStopped = 2 };

// Where packets go and what became of them.
struct LoadDestination {
    std::uint32_t ipv4;  // host byte order
    std::uint16_t port;
    std::uint16_t reserved;
    std::atomic<std::uint64_t> packets;
    std::atomic<std::uint64_t> errors;
};

struct LoadPage {
    char magic[8];
    std::uint32_t version;
    std::uint32_t destinations;
    std::atomic<std::uint64_t> start_ticks;  // of the process, as /proc says; with its id below
    std::atomic<std::uint32_t> pid;          // 0 while it starts
    std::uint32_t ecn;
    std::uint64_t rate_bps;
    std::uint32_t packet_bytes;
    std::uint32_t source_port;
    std::int64_t on_ns, off_ns, ttl_ns;
    std::atomic<std::int64_t> started_mono_ns, ended_mono_ns;
    std::atomic<std::uint32_t> end;  // LoadEnd
    std::atomic<std::uint32_t> last_errno;
    std::atomic<std::uint64_t> packets, bytes;             // handed to the network; bytes of IP packets
    std::atomic<std::uint64_t> refused;                    // ICMP errors that came back; none stops the load
    std::atomic<std::uint64_t> blocked;                    // not sent: the host's own queue was full
    std::atomic<std::uint64_t> errors;                     // not sent: any other reason
    std::atomic<std::uint64_t> skipped;                    // not sent: this process was not let run in time
    std::uint64_t starts, earlier_packets, earlier_bytes;  // of all loads of this folder so far
    std::uint8_t reserved[512 - 168];
    LoadDestination to[kMostDestinations];
};
static_assert(sizeof(LoadDestination) == 24 && offsetof(LoadPage, to) == 512);
static_assert(sizeof(LoadPage) <= kLoadPageBytes);

struct UnmapPage {
    void operator()(LoadPage* page) const;
};
using MappedPage = std::unique_ptr<LoadPage, UnmapPage>;

// Holds the folder's lock, or nothing if a sender has it. Waits a moment for one who only looks. None also
// where there is no folder. Throws Failure.
std::optional<Descriptor> lock_load(const std::string& folder, bool make_folder);

// True if a sender lives, as far as the lock tells.
bool load_is_locked(const std::string& folder);

// The page of the last start; null where there was none. Throws Failure if it is no such page.
MappedPage open_load_page(const std::string& folder);

// Puts a page with the fields of `plan` in place, for one that holds the lock.
MappedPage replace_load_page(const std::string& folder, const LoadPage& plan);

// When process `pid` started, in clock ticks since boot; 0 if there is none.
std::uint64_t start_ticks_of(std::uint32_t pid);

}  // namespace genie
