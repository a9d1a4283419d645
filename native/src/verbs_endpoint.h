// What a rank owns at one port of an RDMA device: the open device, its registered memory, its completion
// queue and the making and connecting of queue pairs. Used by the verbs transport, which owns what goes over
// them.
//
// Everything is given back in the reverse order of its making; of a process that is killed the kernel gives
// it back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "units.h"
#include "verbs_card.h"
#include "verbs_library.h"
#include "verbs_settings.h"

namespace genie {

template <class Object>
struct VerbsCloser {
    int (*close)(Object*) = nullptr;
    void operator()(Object* object) const { close(object); }
};

template <class Object>
using VerbsHandle = std::unique_ptr<Object, VerbsCloser<Object>>;

// Anonymous memory, of whole pages and all zero; not given on to forked children.
class VerbsRegion {
  public:
    VerbsRegion() = default;
    explicit VerbsRegion(std::size_t bytes);
    VerbsRegion(const VerbsRegion&) = delete;
    VerbsRegion& operator=(const VerbsRegion&) = delete;
    ~VerbsRegion();

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }

  private:
    std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
};

class VerbsEndpoint {
  public:
    // Opens the device and its port. `own_ipv4` (host order) helps to choose among several devices. Throws
    // Failure (kTransport), as do all below that are not const.
    VerbsEndpoint(const VerbsLibrary& library, const VerbsSettings& settings, std::uint32_t own_ipv4,
                  std::uint32_t rank);
    VerbsEndpoint(const VerbsEndpoint&) = delete;
    VerbsEndpoint& operator=(const VerbsEndpoint&) = delete;
    ~VerbsEndpoint();

    // Registers memory and makes the completion queue, once, before the first queue pair.
    void reserve(std::size_t region_bytes, std::uint64_t completions);

    // A reliable-connection queue pair that may receive, not connected yet.
    VerbsHandle<ibv_qp> make_queue_pair(std::uint32_t send_depth, std::uint32_t receive_depth);
    // Both ends must have done this before the first packet. `peer` is the card of the rank named in errors.
    void connect(ibv_qp* pair, std::uint32_t own_psn, const VerbsCard& peer, const VerbsQueuePair& remote,
                 std::uint32_t rank);
    // As if the network had cut it: the queue pair answers nothing any more, and says nothing.
    void silence(ibv_qp* pair);

    // -- completions and events; none blocks

    int poll(ibv_wc* completions, int most) { return ::ibv_poll_cq(queue_.get(), most, completions); }
    // Readable after a completion that came since `arm`; -1 where this rank never sleeps.
    int channel_fd() const { return channel_ == nullptr ? -1 : channel_->fd; }
    void arm();
    void take_channel_events();
    int event_fd() const { return context_->async_fd; }
    // Gives the next event of the device to `handle`; false if there is none.
    bool take_event(const std::function<void(const ibv_async_event&)>& handle);

    std::uint8_t* memory() const { return region_->data(); }
    std::uint64_t address_of(const std::uint8_t* place) const {
        return reinterpret_cast<std::uint64_t>(place);
    }
    const std::uint8_t* place_at(std::uint64_t address) const {
        return memory() + (address - address_of(memory()));
    }
    std::uint32_t lkey() const { return memory_->lkey; }
    std::uint32_t rkey() const { return memory_->rkey; }
    std::uint32_t inline_bytes() const { return inline_bytes_; }
    // Whether relaxed ordering was asked for; what the device and the root complex make of it nobody says.
    bool relaxed_ordering() const { return relaxed_ordering_; }
    const VerbsDevice& device() const { return device_; }
    const VerbsPort& port() const { return *port_; }
    const VerbsGid& gid() const { return gid_; }
    ibv_mtu mtu() const { return mtu_; }
    // rxe0 port 1
    std::string where() const;

  private:
    void open_device(std::uint32_t own_ipv4);
    void choose_port();
    void choose_ordering();
    void modify(ibv_qp* pair, ibv_qp_attr& attributes, int mask, const char* into, std::uint32_t rank);

    const VerbsLibrary& library_;
    const VerbsSettings& settings_;
    const std::uint32_t rank_;
    VerbsDevice device_;
    const VerbsPort* port_ = nullptr;
    VerbsGid gid_;
    ibv_mtu mtu_ = IBV_MTU_1024;
    std::uint32_t inline_bytes_ = 0;
    bool relaxed_ordering_ = false;
    unsigned unacknowledged_ = 0;  // events of the completion channel

    // In the order of their making.
    VerbsHandle<ibv_context> context_;
    VerbsHandle<ibv_pd> domain_;
    std::optional<VerbsRegion> region_;
    VerbsHandle<ibv_mr> memory_;
    VerbsHandle<ibv_comp_channel> channel_;
    VerbsHandle<ibv_cq> queue_;
};

}  // namespace genie
