// An RDMA device of memory alone, behind the same table of functions and the same operations as a real one:
// the whole verbs transport runs over it on any machine, with several ranks in this process.
//
// It is stricter than hardware. A message that finds no receive, more sends than the queue holds, more
// completions than theirs holds, a wrong key or address: each is an error at once, where a NIC would retry or
// corrupt.
#pragma once

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "verbs_library.h"

namespace genie::test {

// A queue in memory taken once: the fake allocates nothing while a run runs.
template <class Item>
class FixedQueue {
  public:
    explicit FixedQueue(std::size_t most = 0) : items_(most) {}
    bool full() const { return put_ - taken_ == items_.size(); }
    bool empty() const { return put_ == taken_; }
    Item& push() { return items_[put_++ % items_.size()]; }
    Item& front() { return items_[taken_ % items_.size()]; }
    void pop() { ++taken_; }
    void clear() { taken_ = put_; }

  private:
    std::vector<Item> items_;
    std::size_t put_ = 0;
    std::size_t taken_ = 0;
};

class FakeDevice {
  public:
    // There is one in the process; `library` gives its functions.
    static FakeDevice& get() {
        static FakeDevice kDevice;
        return kDevice;
    }
    static const VerbsLibrary& library();

    // What a test may choose before it opens the device. `reset` puts all back and forgets complaints.
    ibv_device_attr limits{};
    ibv_port_attr port{};
    std::uint32_t most_inline = 4096;
    bool absent = false;
    bool iwarp = false;
    bool refuse_memory = false;
    unsigned access = 0;    // that memory was registered with last
    bool corrupt = false;   // one bit of each message turns over on its way
    bool shuffled = false;  // messages of different queue pairs overtake one another
    void reset() {
        limits = {};
        std::strcpy(limits.fw_ver, "1.2.3");
        limits.phys_port_cnt = 1;
        limits.max_qp = 1000;
        limits.max_qp_wr = 4096;
        limits.max_cqe = 1 << 16;
        limits.max_mr = 100;
        limits.max_mr_size = ~std::uint64_t{0};
        port = {};
        port.state = IBV_PORT_ACTIVE;
        port.max_mtu = port.active_mtu = IBV_MTU_4096;
        port.max_msg_sz = 1 << 30;
        port.gid_tbl_len = 4;
        port.link_layer = IBV_LINK_LAYER_ETHERNET;
        most_inline = 4096;
        refuse_memory = corrupt = shuffled = absent = iwarp = false;
        access = 0;
        clock = nullptr;
        inside = 0;
        complaint.clear();
    }

    // Reads a clock at the beginning and the end of each operation, if there is one; the sum of the spans.
    std::uint64_t (*clock)() = nullptr;
    std::uint64_t inside = 0;

    std::string complaint;  // the first thing a transport did that it must never do
    int objects() {
        const std::lock_guard lock(mutex_);
        return objects_;
    }
    // The device says something about one of its queue pairs, or about itself (null).
    void raise(ibv_event_type type, std::uint32_t queue_pair);

  private:
    class Stay {
      public:
        explicit Stay(FakeDevice& device)
            : device_(device), begin_(device.clock == nullptr ? 0 : device.clock()) {}
        ~Stay() {
            if (device_.clock != nullptr) device_.inside += device_.clock() - begin_;
        }

      private:
        FakeDevice& device_;
        const std::uint64_t begin_;
    };

    struct Completions;
    struct Context {
        ibv_context base{};
        std::vector<ibv_async_event> events;
    };
    struct Entry {
        ibv_wc completion{};
        std::uint32_t frees = 0;  // sends of the queue pair below
        std::uint32_t queue_pair = 0;
    };
    struct Channel {
        ibv_comp_channel base{};
        ibv_cq* queue = nullptr;
    };
    struct Completions {
        ibv_cq base{};
        FixedQueue<Entry> entries;
        bool armed = false;
    };
    struct Receive {
        std::uint64_t id = 0;
        ibv_sge piece{};
        int pieces = 0;
    };
    struct Sent {
        ibv_send_wr request{};
        ibv_sge piece{};
        std::uint8_t inlined[4096];
    };
    struct Pair {
        ibv_qp base{};
        ibv_qp_state state = IBV_QPS_RESET;
        std::uint32_t peer = 0;
        std::uint32_t depth = 0;
        std::uint32_t held = 0;  // sends of which no completion was polled
        std::uint32_t since_signalled = 0;
        FixedQueue<Receive> receives;
        FixedQueue<Sent> wire;
    };
    struct Memory {
        ibv_mr base{};
    };

    FakeDevice() { reset(); }
    void complain(const std::string& text) {
        if (complaint.empty()) complaint = text;
    }
    Pair* find(std::uint32_t number) {
        const auto found = pairs_.find(number);
        return found == pairs_.end() ? nullptr : found->second;
    }
    bool reaches(std::uint32_t key, std::uint64_t address, std::uint64_t bytes) {
        const auto found = memories_.find(key);
        if (found == memories_.end()) return false;
        const auto begin = reinterpret_cast<std::uint64_t>(found->second->base.addr);
        return address >= begin && address + bytes <= begin + found->second->base.length;
    }
    void complete(ibv_cq* queue, const ibv_wc& completion, std::uint32_t pair, std::uint32_t frees);
    void finish(Pair& pair, const Sent& sent, ibv_wc_status status);
    void carry(Pair& pair);
    int post(ibv_qp* base, ibv_send_wr* request, ibv_send_wr** refused);
    int post_receive(ibv_qp* base, ibv_recv_wr* request, ibv_recv_wr** refused);
    int poll(ibv_cq* base, int most, ibv_wc* out);

    ibv_mr* register_memory(ibv_pd* domain, void* address, std::size_t bytes, unsigned with) {
        const std::lock_guard lock(mutex_);
        access = with;
        if (refuse_memory) {
            errno = ENOMEM;
            return nullptr;
        }
        auto* const memory = new Memory;
        const std::uint32_t key = next_number_++;
        memory->base = {domain->context, domain, address, bytes, 0, key, key};
        ++objects_;
        memories_[key] = memory;
        return &memory->base;
    }

    std::mutex mutex_;
    ibv_device device_{};
    int objects_ = 0;
    std::uint32_t next_number_ = 17;
    std::map<std::uint32_t, Pair*> pairs_;
    std::map<std::uint32_t, Memory*> memories_;
    std::vector<Context*> contexts_;
    std::minstd_rand random_{1};
};

inline void FakeDevice::complete(ibv_cq* queue, const ibv_wc& completion, std::uint32_t pair,
                                 std::uint32_t frees) {
    auto& completions = *reinterpret_cast<Completions*>(queue);
    if (completions.entries.full()) return complain("the completion queue ran over");
    Entry& entry = completions.entries.push();
    entry = {completion, frees, pair};
    if (!completions.armed || queue->channel == nullptr) return;
    completions.armed = false;
    const std::uint64_t one = 1;
    if (::write(queue->channel->fd, &one, sizeof one) < 0) complain("the channel ran over");
}

inline void FakeDevice::finish(Pair& pair, const Sent& sent, ibv_wc_status status) {
    ++pair.since_signalled;
    if (status == IBV_WC_SUCCESS && (sent.request.send_flags & IBV_SEND_SIGNALED) == 0) return;
    ibv_wc completion{};
    completion.wr_id = sent.request.wr_id;
    completion.status = status;
    completion.qp_num = pair.base.qp_num;
    completion.opcode = IBV_WC_RDMA_WRITE;
    complete(pair.base.send_cq, completion, pair.base.qp_num, std::exchange(pair.since_signalled, 0));
}

// Takes the first message of a queue pair's wire to where it goes.
inline void FakeDevice::carry(Pair& pair) {
    Sent& sent = pair.wire.front();
    const ibv_send_wr& request = sent.request;
    const std::uint32_t bytes = request.num_sge == 0 ? 0 : sent.piece.length;
    Pair* const peer = find(pair.peer);
    ibv_wc_status status = IBV_WC_SUCCESS;
    if (pair.state != IBV_QPS_RTS) {
        status = IBV_WC_WR_FLUSH_ERR;
    } else if (peer == nullptr || peer->state == IBV_QPS_RESET || peer->state == IBV_QPS_INIT ||
               peer->peer != pair.base.qp_num) {
        status = IBV_WC_RETRY_EXC_ERR;
    } else if (request.opcode != IBV_WR_RDMA_WRITE && peer->receives.empty()) {
        status = IBV_WC_RNR_RETRY_EXC_ERR;
        complain("a message found no receive");
    } else {
        const bool plain = request.opcode == IBV_WR_RDMA_WRITE;  // the receiver hears nothing of it
        const Receive receive = plain ? Receive{} : peer->receives.front();
        const bool write = plain || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        std::uint64_t to = receive.piece.addr;
        if (write) {
            to = request.wr.rdma.remote_addr;
            if (bytes > 0 && !reaches(request.wr.rdma.rkey, to, bytes)) status = IBV_WC_REM_ACCESS_ERR;
        } else if (bytes > (receive.pieces == 0 ? 0 : receive.piece.length)) {
            status = IBV_WC_REM_INV_REQ_ERR;
        }
        if (status == IBV_WC_SUCCESS) {
            const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
            if (bytes > 0) {
                std::memcpy(reinterpret_cast<void*>(to),
                            inlined ? sent.inlined : reinterpret_cast<const void*>(sent.piece.addr), bytes);
                const bool credit = !plain && (ntohl(request.imm_data) >> 31) != 0;
                if (corrupt && !credit) *reinterpret_cast<std::uint8_t*>(to + bytes / 2) ^= 1;
            }
        }
        if (status == IBV_WC_SUCCESS && !plain) {
            peer->receives.pop();
            ibv_wc completion{};
            completion.wr_id = receive.id;
            completion.status = IBV_WC_SUCCESS;
            completion.opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
            completion.byte_len = bytes;
            completion.imm_data = request.imm_data;
            completion.wc_flags = IBV_WC_WITH_IMM;
            completion.qp_num = peer->base.qp_num;
            complete(peer->base.recv_cq, completion, peer->base.qp_num, 0);
        }
    }
    finish(pair, sent, status);
    if (status != IBV_WC_SUCCESS) pair.state = IBV_QPS_ERR;
    pair.wire.pop();
}

inline int FakeDevice::post(ibv_qp* base, ibv_send_wr* request, ibv_send_wr** refused) {
    const Stay stay(*this);
    const std::lock_guard lock(mutex_);
    Pair& pair = *reinterpret_cast<Pair*>(base);
    for (; request != nullptr; request = request->next) {
        *refused = request;
        if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return EINVAL;
        if (pair.held == pair.depth) {
            complain("more sends than the queue holds");
            return ENOMEM;
        }
        ++pair.held;
        Sent& sent = pair.wire.push();
        sent.request = *request;
        if (request->num_sge > 0) {
            sent.piece = request->sg_list[0];
            if ((request->send_flags & IBV_SEND_INLINE) != 0) {
                std::memcpy(sent.inlined, reinterpret_cast<const void*>(sent.piece.addr), sent.piece.length);
            } else if (!reaches(sent.piece.lkey, sent.piece.addr, sent.piece.length)) {
                complain("a send from memory that is not registered");
            }
        }
        if (!shuffled) carry(pair);
    }
    return 0;
}

inline int FakeDevice::post_receive(ibv_qp* base, ibv_recv_wr* request, ibv_recv_wr** refused) {
    const Stay stay(*this);
    const std::lock_guard lock(mutex_);
    Pair& pair = *reinterpret_cast<Pair*>(base);
    for (; request != nullptr; request = request->next) {
        *refused = request;
        if (pair.receives.full()) {
            complain("more receives than the queue holds");
            return ENOMEM;
        }
        Receive& receive = pair.receives.push();
        receive = {request->wr_id, {}, request->num_sge};
        if (request->num_sge > 0) receive.piece = request->sg_list[0];
    }
    return 0;
}

inline int FakeDevice::poll(ibv_cq* base, int most, ibv_wc* out) {
    const Stay stay(*this);
    const std::lock_guard lock(mutex_);
    if (shuffled) {
        for (auto& [number, pair] : pairs_) {
            if (!pair->wire.empty() && random_() % 3 == 0) carry(*pair);
        }
    }
    auto& completions = *reinterpret_cast<Completions*>(base);
    int count = 0;
    for (; count < most && !completions.entries.empty(); ++count) {
        const Entry& entry = completions.entries.front();
        out[count] = entry.completion;
        if (Pair* const pair = find(entry.queue_pair); pair != nullptr) pair->held -= entry.frees;
        completions.entries.pop();
    }
    return count;
}

inline void FakeDevice::raise(ibv_event_type type, std::uint32_t queue_pair) {
    const std::lock_guard lock(mutex_);
    for (Context* context : contexts_) {
        Pair* const pair = queue_pair == 0 ? nullptr : find(queue_pair);
        if (pair != nullptr && pair->base.context != &context->base) continue;
        ibv_async_event event{};
        event.event_type = type;
        if (pair != nullptr) event.element.qp = &pair->base;
        context->events.push_back(event);
        const std::uint64_t one = 1;
        if (::write(context->base.async_fd, &one, sizeof one) < 0) complain("cannot raise an event");
    }
}

inline const VerbsLibrary& FakeDevice::library() {
    static const VerbsLibrary kTable = [] {
        VerbsLibrary table;
        table.get_device_list = [](int* count) {
            get().device_.transport_type = get().iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
            auto** const list = new ibv_device* [2] { &get().device_, nullptr };
            *count = get().absent ? 0 : 1;
            return list;
        };
        table.free_device_list = [](ibv_device** list) { delete[] list; };
        table.get_device_name = [](ibv_device*) { return "fake0"; };
        table.open_device = [](ibv_device* device) {
            auto* const context = new Context;
            context->base.device = device;
            context->base.async_fd = ::eventfd(0, EFD_SEMAPHORE);
            context->base.num_comp_vectors = 1;
            context->base.ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** refused) {
                return get().post(pair, request, refused);
            };
            context->base.ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** refused) {
                return get().post_receive(pair, request, refused);
            };
            context->base.ops.poll_cq = [](ibv_cq* queue, int most, ibv_wc* out) {
                return get().poll(queue, most, out);
            };
            context->base.ops.req_notify_cq = [](ibv_cq* queue, int) {
                const std::lock_guard lock(get().mutex_);
                reinterpret_cast<Completions*>(queue)->armed = true;
                return 0;
            };
            const std::lock_guard lock(get().mutex_);
            ++get().objects_;
            get().contexts_.push_back(context);
            return &context->base;
        };
        table.close_device = [](ibv_context* base) {
            auto* const context = reinterpret_cast<Context*>(base);
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            std::erase(get().contexts_, context);
            ::close(base->async_fd);
            delete context;
            return 0;
        };
        table.query_device = [](ibv_context*, ibv_device_attr* out) {
            *out = get().limits;
            return 0;
        };
        table.query_port = [](ibv_context*, std::uint8_t, _compat_ibv_port_attr* out) {
            std::memcpy(static_cast<void*>(out), &get().port, sizeof get().port);
            return 0;
        };
        table.query_gid_table = [](ibv_context*, ibv_gid_entry* entries, std::size_t, std::uint32_t,
                                   std::size_t) -> ssize_t {
            entries[0] = entries[1] = {};
            entries[0].gid.raw[0] = 0xfe;
            entries[0].gid.raw[1] = 0x80;
            entries[0].gid.raw[15] = 1;
            const std::uint8_t mapped[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
            std::memcpy(entries[1].gid.raw, mapped, sizeof mapped);
            entries[1].gid_index = 1;
            entries[0].port_num = entries[1].port_num = 1;
            entries[0].gid_type = entries[1].gid_type = IBV_GID_TYPE_ROCE_V2;
            return 2;
        };
        table.alloc_pd = [](ibv_context* context) {
            const std::lock_guard lock(get().mutex_);
            ++get().objects_;
            return new ibv_pd{context, 1};
        };
        table.dealloc_pd = [](ibv_pd* domain) {
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            delete domain;
            return 0;
        };
        table.reg_mr = [](ibv_pd* domain, void* address, std::size_t bytes, int access) -> ibv_mr* {
            if ((static_cast<unsigned>(access) & IBV_ACCESS_OPTIONAL_RANGE) != 0)
                get().complain("optional access where only ibv_reg_mr_iova2 takes it");
            return get().register_memory(domain, address, bytes, static_cast<unsigned>(access));
        };
        table.reg_mr_iova2 = [](ibv_pd* domain, void* address, std::size_t bytes, std::uint64_t iova,
                                unsigned access) -> ibv_mr* {
            if (iova != reinterpret_cast<std::uint64_t>(address)) get().complain("memory at another address");
            return get().register_memory(domain, address, bytes, access);
        };
        table.dereg_mr = [](ibv_mr* base) {
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            get().memories_.erase(base->rkey);
            delete reinterpret_cast<Memory*>(base);
            return 0;
        };
        table.create_comp_channel = [](ibv_context* context) {
            auto* const channel = new Channel;
            channel->base = {context, ::eventfd(0, EFD_SEMAPHORE), 0};
            const std::lock_guard lock(get().mutex_);
            ++get().objects_;
            return &channel->base;
        };
        table.destroy_comp_channel = [](ibv_comp_channel* channel) {
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            ::close(channel->fd);
            delete reinterpret_cast<Channel*>(channel);
            return 0;
        };
        table.create_cq = [](ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
            auto* const queue = new Completions;
            queue->base.context = context;
            queue->base.channel = channel;
            queue->base.cqe = entries;
            queue->entries = FixedQueue<Entry>(static_cast<std::size_t>(entries));
            if (channel != nullptr) reinterpret_cast<Channel*>(channel)->queue = &queue->base;
            const std::lock_guard lock(get().mutex_);
            ++get().objects_;
            return &queue->base;
        };
        table.destroy_cq = [](ibv_cq* queue) {
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            delete reinterpret_cast<Completions*>(queue);
            return 0;
        };
        table.get_cq_event = [](ibv_comp_channel* channel, ibv_cq** queue, void**) {
            std::uint64_t one = 0;
            if (::read(channel->fd, &one, sizeof one) < 0) return -1;
            *queue = reinterpret_cast<Channel*>(channel)->queue;
            return 0;
        };
        table.ack_cq_events = [](ibv_cq*, unsigned) {};
        table.create_qp = [](ibv_pd* domain, ibv_qp_init_attr* wanted) -> ibv_qp* {
            const std::lock_guard lock(get().mutex_);
            if (wanted->cap.max_inline_data > get().most_inline) {
                errno = EINVAL;
                return nullptr;
            }
            auto* const pair = new Pair;
            pair->base.context = domain->context;
            pair->base.send_cq = wanted->send_cq;
            pair->base.recv_cq = wanted->recv_cq;
            pair->base.qp_num = get().next_number_++;
            pair->depth = wanted->cap.max_send_wr;
            pair->receives = FixedQueue<Receive>(wanted->cap.max_recv_wr);
            pair->wire = FixedQueue<Sent>(wanted->cap.max_send_wr);
            ++get().objects_;
            get().pairs_[pair->base.qp_num] = pair;
            return &pair->base;
        };
        table.modify_qp = [](ibv_qp* base, ibv_qp_attr* attributes, int mask) {
            const std::lock_guard lock(get().mutex_);
            auto& pair = *reinterpret_cast<Pair*>(base);
            if ((mask & IBV_QP_DEST_QPN) != 0) pair.peer = attributes->dest_qp_num;
            pair.state = attributes->qp_state;
            return 0;
        };
        table.destroy_qp = [](ibv_qp* base) {
            const std::lock_guard lock(get().mutex_);
            --get().objects_;
            get().pairs_.erase(base->qp_num);
            delete reinterpret_cast<Pair*>(base);
            return 0;
        };
        table.get_async_event = [](ibv_context* base, ibv_async_event* out) {
            std::uint64_t one = 0;
            if (::read(base->async_fd, &one, sizeof one) < 0) return -1;
            const std::lock_guard lock(get().mutex_);
            auto& events = reinterpret_cast<Context*>(base)->events;
            *out = events.front();
            events.erase(events.begin());
            return 0;
        };
        table.ack_async_event = [](ibv_async_event*) {};
        return table;
    }();
    return kTable;
}

}  // namespace genie::test
