// A reliable-datagram endpoint of libfabric with its completion queue, address vector and memory: what
// `OfiTransport` posts to. Knows providers, not ranks.
//
// The provider is the one that was asked for or none: what libfabric puts above it to make datagrams of
// connections ("tcp;ofi_rxm") is allowed, another one below is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ofi_library.h"
#include "units.h"

namespace genie {

struct OfiWanted {
    std::string provider;    // tcp, verbs, efa, cxi, shm
    std::string domain;      // the device, as the provider calls it; empty: any
    std::uint32_t ipv4 = 0;  // of the endpoint, in host order, where the provider has such addresses; 0: any
    std::uint16_t port = 0;  // 0: any
    std::size_t sends = 0;   // that may be posted at once
    std::size_t receives = 0;
    std::size_t message_bytes = 0;  // of the longest
};

// One region for all payload, mapped but not touched; registered where the provider wants that.
class OfiMemory {
  public:
    OfiMemory() = default;
    OfiMemory(const OfiMemory&) = delete;
    OfiMemory& operator=(const OfiMemory&) = delete;
    ~OfiMemory();

    std::uint8_t* at(std::size_t offset) const { return data_ + offset; }
    void* descriptor() const { return descriptor_; }

  private:
    friend class OfiEndpoint;
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    OfiObject<fid_mr> region_;
    void* descriptor_ = nullptr;
};

// What this host's libfabric offers for endpoints of our kind, as JSON: its version, and of each provider the
// names of its devices. Throws Failure (kConnect): it is not there.
std::string ofi_json();

class OfiEndpoint {
  public:
    // Throws Failure (kConnect) with what the provider lacks, or with what is offered instead of it.
    explicit OfiEndpoint(const OfiWanted& wanted);

    // Maps and registers. Throws Failure.
    void map(OfiMemory& memory, std::size_t size) const;

    // "tcp;ofi_rxm"
    const std::string& provider() const { return provider_; }
    // The device, as the provider calls it.
    std::string domain() const { return info_->domain_attr->name; }
    // Whether libfabric makes the datagrams, not the provider.
    bool layered() const { return provider_.find(';') != std::string::npos; }
    // The endpoint's address, bytes of the provider's own format.
    const std::vector<std::uint8_t>& address() const { return address_; }
    // The IP port in it, 0 if it has none.
    std::uint16_t port() const;
    // Throws Failure (kConnect).
    fi_addr_t insert(const std::vector<std::uint8_t>& address, std::uint32_t peer) const;

    fid_ep* endpoint() const { return endpoint_.get(); }
    fid_cq* queue() const { return queue_.get(); }
    // False: the provider has nothing to sleep on, so waiting is looking again and again.
    bool sleeps() const { return wait_fd_ >= 0; }
    // Sleeps until a completion may be there or `until` has come. True: `stop_fd` is readable.
    bool wait(Nanos now, Nanos until, int stop_fd);
    // A completion came: where nothing can be slept on, the next looks follow closely again.
    void awake() { pause_ = {0}; }
    // What went wrong, in the provider's words and libfabric's.
    std::string describe(const fi_cq_err_entry& error) const;
    // Peers can reach it no longer, and what was posted is ours again.
    void close() { endpoint_.reset(); }

  private:
    void open_queue(std::size_t entries);

    const OfiLibrary& library_;
    std::string provider_;
    OfiInfo info_;
    OfiObject<fid_fabric> fabric_;
    OfiObject<fid_domain> domain_;
    OfiObject<fid_av> addresses_;
    OfiObject<fid_cq> queue_;
    OfiObject<fid_ep> endpoint_;
    std::vector<std::uint8_t> address_;
    int wait_fd_ = -1;
    Nanos pause_{0};  // of the next look, where nothing can be slept on
};

}  // namespace genie
