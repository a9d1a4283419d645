// Queue and link counters of interfaces in one network namespace, over rtnetlink.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "descriptor.h"

namespace genie {

// Cumulative except for backlog. Queue counters restart when someone replaces the interface's root qdisc.
struct PortCounters {
    std::uint64_t backlog_bytes = 0;
    std::uint64_t backlog_packets = 0;
    std::uint64_t drops = 0;
    std::uint64_t overlimits = 0;
    std::uint64_t tx_bytes = 0;
    std::uint64_t tx_packets = 0;
    std::uint64_t red_marked = 0;  // by a red child; counts only if has_red
    bool has_red = false;
    // The shaper at the root, if it is a tbf; else 0.
    std::uint64_t tbf_rate_bytes_per_s = 0;
    std::uint64_t tbf_limit_bytes = 0;
};

class NamespaceReader {
  public:
    // Opens a socket inside the namespace whose file is `path`. The calling thread stays in that namespace.
    explicit NamespaceReader(const std::string& path);

    // Counters of every interface there, by interface index. Throws Failure if the kernel refuses.
    const std::map<std::uint32_t, PortCounters>& read();

  private:
    void request(std::uint16_t type, const void* body, std::size_t size);

    std::string path_;
    Descriptor socket_;
    std::uint32_t sequence_ = 0;
    std::vector<char> buffer_;
    std::map<std::uint32_t, PortCounters> counters_;
};

}  // namespace genie
