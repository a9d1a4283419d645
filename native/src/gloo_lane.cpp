#include "gloo_lane.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "clock.h"
#include "pattern.h"
#include "sockets.h"

namespace genie {
namespace {

constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
constexpr std::uint64_t kSlots = 3;  // of a channel: heads, payload, greetings

}  // namespace

GlooReports::GlooReports() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd_.valid()) fail_errno(Code::kInternal, "cannot make an eventfd");
}

void GlooReports::put(GlooReport report) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
    const std::uint64_t one = 1;
    // It cannot fail: the counter is far from full, and a reader that is gone needs no word.
    if (::write(fd_.get(), &one, sizeof one) < 0) return;
}

void GlooReports::take(std::vector<GlooReport>& into) {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    if (::read(fd_.get(), &count, sizeof count) < 0) return;  // nothing since the last time
    for (GlooReport& report : reports_) into.push_back(std::move(report));
    reports_.clear();
}

GlooLane::GlooLane(Options options, ::gloo::transport::Context& context, GlooReports& reports)
    : options_(options),
      reports_(reports),
      own_(options.shared == nullptr ? options.send_bytes + options.receive_bytes : 0),
      outgoing_(options.shared == nullptr ? own_.data() : options.shared),
      incoming_(outgoing_ + options.send_bytes) {
    head_out_buffer_ = context.createUnboundBuffer(&head_out_, sizeof head_out_);
    head_in_buffer_ = context.createUnboundBuffer(&head_in_, sizeof head_in_);
    out_buffer_ = context.createUnboundBuffer(outgoing_, options_.send_bytes);
    in_buffer_ = context.createUnboundBuffer(incoming_, options_.receive_bytes);
    greeting_out_buffer_ = context.createUnboundBuffer(greeting_out_.data(), greeting_out_.size());
    greeting_in_buffer_ = context.createUnboundBuffer(greeting_in_.data(), greeting_in_.size());
}

GlooLane::~GlooLane() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    for (const Buffer* buffer : {&head_out_buffer_, &out_buffer_}) (*buffer)->abortWaitSend();
    for (const Buffer* buffer : {&head_in_buffer_, &in_buffer_}) (*buffer)->abortWaitRecv();
    if (sender_.joinable()) sender_.join();
    if (receiver_.joinable()) receiver_.join();
}

void GlooLane::offer(const void* greeting, std::size_t bytes) {
    std::memcpy(greeting_out_.data(), greeting, bytes);
    const std::uint64_t slot = kSlots * options_.channel + 2;
    greeting_in_buffer_->recv(static_cast<int>(options_.peer), slot, 0, bytes);
    greeting_out_buffer_->send(static_cast<int>(options_.peer), slot, 0, bytes);
}

bool GlooLane::await(void* greeting, std::size_t bytes, std::chrono::milliseconds timeout) {
    if (!greeting_out_buffer_->waitSend(timeout) || !greeting_in_buffer_->waitRecv(timeout)) return false;
    std::memcpy(greeting, greeting_in_.data(), bytes);
    return true;
}

void GlooLane::start() {
    sender_ = std::thread([this] { send_all(); });
    receiver_ = std::thread([this] { receive_all(); });
}

void GlooLane::send(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    next_ = frame;
    changed_.notify_all();
}

bool GlooLane::send_credit(std::uint64_t messages) {
    const std::lock_guard lock(mutex_);
    const bool waited = std::exchange(credit_, messages).has_value();
    changed_.notify_all();
    return !waited;
}

void GlooLane::lose(Code code, const std::string& text) {
    GlooReport report;
    report.connection = options_.connection;
    report.code = code;
    report.text = text;
    reports_.put(std::move(report));
}

// False once the lane shall stop.
bool GlooLane::send_frame(const Frame& frame) {
    const int peer = static_cast<int>(options_.peer);
    const std::uint64_t slot = kSlots * options_.channel;
    const bool has_payload = frame.type == FrameType::kData && frame.bytes > 0;
    head_out_ = frame;
    if (has_payload && options_.verify) Pattern(frame).fill(outgoing_, 0, frame.bytes);
    head_out_buffer_->send(peer, slot, 0, sizeof head_out_);
    if (has_payload) out_buffer_->send(peer, slot + 1, 0, frame.bytes);
    return head_out_buffer_->waitSend(kForever) && (!has_payload || out_buffer_->waitSend(kForever));
}

void GlooLane::send_all() {
    try {
        for (;;) {
            Frame frame;
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [this] { return stopping_ || next_ || credit_; });
                if (stopping_) return;
                if (credit_) {
                    frame.type = FrameType::kCredit;
                    frame.bytes = *std::exchange(credit_, std::nullopt);
                } else {
                    frame = *std::exchange(next_, std::nullopt);
                }
            }
            if (!send_frame(frame)) return;
            GlooReport report;
            report.kind =
                frame.type == FrameType::kCredit ? GlooReport::Kind::kCreditSent : GlooReport::Kind::kSent;
            report.connection = options_.connection;
            report.frame = frame;
            report.times.last = monotonic_now();
            reports_.put(std::move(report));
        }
    } catch (const std::exception& error) {
        lose(Code::kPeerClosed,
             "sending to rank " + std::to_string(options_.peer) + " over gloo failed: " + error.what());
    }
}

void GlooLane::receive_all() {
    const int peer = static_cast<int>(options_.peer);
    const std::uint64_t slot = kSlots * options_.channel;
    const std::string who = "rank " + std::to_string(options_.peer);
    try {
        for (;;) {
            head_in_buffer_->recv(peer, slot, 0, sizeof head_in_);
            if (!head_in_buffer_->waitRecv(kForever)) return;
            GlooReport report;
            report.connection = options_.connection;
            report.frame = head_in_;
            report.times.first = monotonic_now();
            const Frame& frame = report.frame;
            if (frame.magic != kFrameMagic ||
                (frame.type != FrameType::kData && frame.type != FrameType::kCredit)) {
                return lose(Code::kProtocol, who + " sent what is not a frame");
            }
            if (frame.type == FrameType::kCredit) {
                report.kind = GlooReport::Kind::kCredit;
                reports_.put(std::move(report));
                continue;
            }
            if (frame.bytes > options_.receive_bytes) {
                return lose(Code::kSizeMismatch, who + " sent a message of " + std::to_string(frame.bytes) +
                                                     " bytes, longer than any that this rank expects");
            }
            if (frame.bytes > 0) {
                in_buffer_->recv(peer, slot + 1, 0, frame.bytes);
                if (!in_buffer_->waitRecv(kForever)) return;
            }
            report.times.last = monotonic_now();
            if (options_.verify) {
                const std::size_t same = Pattern(frame).compare(incoming_, 0, frame.bytes);
                if (same != frame.bytes) {
                    return lose(Code::kBadPayload, "byte " + std::to_string(same) + " of message " +
                                                       std::to_string(frame.message & kNone) + " of call " +
                                                       std::to_string(frame.call_id) + " from " + who +
                                                       " is not the one that was sent");
                }
            }
            report.kind = GlooReport::Kind::kMessage;
            reports_.put(std::move(report));
        }
    } catch (const std::exception& error) {
        lose(Code::kPeerClosed, "receiving from " + who + " over gloo failed: " + error.what());
    }
}

}  // namespace genie
