// How a rank over RDMA waits: polling its completion queue, or asleep until that, its device or its owner has
// something to say.
#include <poll.h>
#include <sched.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "driver.h"
#include "verbs.h"
#include "verbs_error.h"

namespace genie {
namespace {

constexpr Nanos kEventsEvery = 10_ms;  // a rank that does not sleep looks for events of its device so often
constexpr unsigned kSpinsAtOnce = 64;  // then it looks at the clock
// How often one that spins lets others run: what comes meanwhile waits for a system call's end.
constexpr Nanos kYieldEvery = 50_us;

}  // namespace

// Whether the rank, or a credit that waits, has anything of this completion. Most sends' are only counted, so
// nobody is woken, and no clock is read, for them.
bool VerbsTransport::keep_for_rank(const ibv_wc& completion) {
    const WorkId id = WorkId::from(completion.wr_id);
    if (id.receive || completion.status != IBV_WC_SUCCESS) return true;
    Queue& queue = queues_[id.queue];
    if (flows_[queue.flow].blocked) return true;
    outstanding_ -= queue.sends.retire(id.sequence);
    return false;
}

// Whether completions were found that anyone waits for; those for the rank are then in gathered_.
bool VerbsTransport::look() {
    const int count = endpoint_->poll(gathered_.data(), static_cast<int>(gathered_.size()));
    ++stats_.polls;
    if (count == 0) {
        ++stats_.empty_polls;
        full_ = false;
        return false;
    }
    if (count < 0) {
        troubles_.push_back({kNone, "the completion queue of " + endpoint_->where() + " cannot be read"});
        return true;
    }
    stats_.completions += static_cast<std::uint64_t>(count);
    full_ = count == static_cast<int>(gathered_.size());
    for (int i = 0; i < count; ++i) {
        const ibv_wc& completion = gathered_[static_cast<std::size_t>(i)];
        if (!keep_for_rank(completion)) continue;
        if (gathered_count_ < i) gathered_[static_cast<std::size_t>(gathered_count_)] = completion;
        ++gathered_count_;
    }
    return gathered_count_ > 0 || full_ || !due_.empty() || (draining_ && outstanding_ == 0);
}

void VerbsTransport::gather(Nanos now, Nanos until) {
    flush();
    if (gathered() || look()) return;
    if (now - events_seen_ > kEventsEvery) {
        events_seen_ = now;
        look_for_events();
    }
    if (until <= now || gathered()) return;
    if (settings_.completion == VerbsCompletion::kBusy) {
        spin(now, until);
    } else {
        sleep(now, until);
    }
}

void VerbsTransport::spin(Nanos now, Nanos until) {
    Nanos yielded = now;
    for (unsigned spins = 1;; ++spins) {
        if (look()) return;
        if (spins % kSpinsAtOnce != 0) continue;
        now = monotonic_now();
        if (now >= until) return;
        if (now - events_seen_ > kEventsEvery) {
            events_seen_ = now;
            look_for_events();
            if (gathered() || stop_wanted()) return;
        }
        if (now - yielded < kYieldEvery) continue;
        ::sched_yield();
        yielded = now;
    }
}

void VerbsTransport::sleep(Nanos now, Nanos until) {
    if (!armed_) {
        endpoint_->arm();
        armed_ = true;
        if (look()) return;  // it may have come before
    }
    std::array<pollfd, 3> sources = {pollfd{endpoint_->channel_fd(), POLLIN, 0},
                                     pollfd{endpoint_->event_fd(), POLLIN, 0}, pollfd{stop_fd_, POLLIN, 0}};
    const std::int64_t left = until == Nanos::never() ? -1 : (until - now).value;
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    ++stats_.sleeps;
    if (::ppoll(sources.data(), sources.size(), left < 0 ? nullptr : &timeout, nullptr) < 0) {
        if (errno == EINTR) return;
        fail_errno(Code::kInternal, "cannot wait for completions");
    }
    if (sources[1].revents != 0) look_for_events();
    if (sources[0].revents != 0) {
        endpoint_->take_channel_events();
        armed_ = false;
        look();
    }
}

bool VerbsTransport::stop_wanted() const {
    pollfd stop{stop_fd_, POLLIN, 0};
    return ::poll(&stop, 1, 0) > 0;
}

void VerbsTransport::look_for_events() {
    while (endpoint_->take_event([this](const ibv_async_event& event) { note_event(event); })) {
    }
}

void VerbsTransport::note_event(const ibv_async_event& event) {
    const std::string name = device_event_name(event.event_type);
    switch (event.event_type) {
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
            for (const Queue& queue : queues_) {
                if (queue.pair.get() != event.element.qp) continue;
                troubles_.push_back({queue.flow, name + " on " + describe(flows_[queue.flow], queue) +
                                                     ": the device stopped the queue pair"});
            }
            return;
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_DEVICE_FATAL:
            troubles_.push_back({kNone, name + " on " + endpoint_->where() + ": the device cannot go on"});
            return;
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE:
            // No end: a link that comes back within the retries is as good as new.
            port_note_ = name + " on " + endpoint_->where();
            if (log_) log_(port_note_);
            return;
        default:
            return;
    }
}

}  // namespace genie
