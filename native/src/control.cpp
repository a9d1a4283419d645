#include "control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "clock.h"
#include "sha256.h"

namespace genie {
namespace {

constexpr std::size_t kHead = 8;
constexpr std::size_t kNonce = 32;
constexpr std::uint32_t kLongestBeforeProof = 4096;
constexpr std::size_t kReadBytes = 256 << 10;
constexpr Nanos kProgressEvery = 200_ms;
constexpr std::size_t kLongestText = 4000;

Digest keyed(const Token& token, std::string_view label, std::span<const std::uint8_t> first,
             std::span<const std::uint8_t> second) {
    std::vector<std::uint8_t> message(label.begin(), label.end());
    message.insert(message.end(), first.begin(), first.end());
    message.insert(message.end(), second.begin(), second.end());
    return hmac_sha256(token, message);
}

}  // namespace

FrameWriter::FrameWriter(ControlType type) {
    put(std::uint32_t{0});
    put(static_cast<std::uint16_t>(type));
    put(kControlVersion);
}

FrameWriter& FrameWriter::raw(std::span<const std::uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
}

FrameWriter& FrameWriter::text(std::string_view value) {
    value = value.substr(0, kLongestText);
    put(static_cast<std::uint16_t>(value.size()));
    return raw(bytes_of(value));
}

std::vector<std::uint8_t> FrameWriter::finish() {
    const auto size = static_cast<std::uint32_t>(bytes_.size() - kHead);
    std::memcpy(bytes_.data(), &size, sizeof size);
    return std::move(bytes_);
}

std::span<const std::uint8_t> FieldReader::raw(std::size_t size) {
    if (size > left_.size()) throw ControlError("the controller sent a frame shorter than its type");
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
}

std::string FieldReader::text() {
    const auto bytes = raw(take<std::uint16_t>());
    return {bytes.begin(), bytes.end()};
}

Agent::Agent(Descriptor socket, std::string host, const Token& token, Log log, bool own_files, PaceFile* pace)
    : socket_(std::move(socket)),
      host_(std::move(host)),
      token_(token),
      log_(std::move(log)),
      own_files_(own_files),
      pace_(pace),
      nonce_(kNonce),
      posted_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!posted_fd_.valid()) throw ControlError(with_reason("cannot make an eventfd", errno));
    if (::getrandom(nonce_.data(), nonce_.size(), 0) != static_cast<ssize_t>(nonce_.size())) {
        throw ControlError(with_reason("cannot get random bytes", errno));
    }
}

Agent::~Agent() = default;

void Agent::serve() {
    hello();
    Nanos next_progress = monotonic_now() + kProgressEvery;
    while (!bye_ || !outgoing_.empty()) {
        const Nanos now = monotonic_now();
        if (now >= next_progress) {
            if (running_) send_progress();
            next_progress = now + kProgressEvery;
        }
        pollfd polls[] = {{socket_.get(), static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT)), 0},
                          {posted_fd_.get(), POLLIN, 0}};
        const std::int64_t left =
            running_ ? std::max<std::int64_t>(0, (next_progress - now).value) : 1'000'000'000;
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        if (::ppoll(polls, 2, &timeout, nullptr) < 0 && errno != EINTR) {
            throw ControlError(with_reason("cannot wait for the controller", errno));
        }
        if ((polls[1].revents & POLLIN) != 0) send_posted();
        if ((polls[0].revents & POLLOUT) != 0) write_out();
        if ((polls[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_controller();
    }
}

void Agent::hello() {
    send(FrameWriter(ControlType::kHello)
             .text(host_)
             .raw(nonce_)
             .put(static_cast<std::uint32_t>(::getpid()))
             .finish());
}

void Agent::read_controller() {
    std::vector<std::uint8_t>& in = incoming_;
    const std::size_t had = in.size();
    // A program may be large: read on to its end without growing step by step.
    in.resize(had + kReadBytes);
    const ssize_t count = ::recv(socket_.get(), in.data() + had, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    in.resize(had + static_cast<std::size_t>(std::max<ssize_t>(0, count)));
    if (count < 0 && (error == EAGAIN || error == EINTR)) return;
    if (count == 0) throw ControlError("the controller went away");
    if (count < 0) throw ControlError(with_reason("the controller went away", error));
    std::size_t at = 0;
    while (in.size() - at >= kHead && !bye_) {
        std::uint32_t size;
        std::uint16_t type;
        std::uint16_t version;
        std::memcpy(&size, in.data() + at, sizeof size);
        std::memcpy(&type, in.data() + at + 4, sizeof type);
        std::memcpy(&version, in.data() + at + 6, sizeof version);
        if (version != kControlVersion) {
            throw ControlError("the controller speaks protocol version " + std::to_string(version) +
                               ", this agent version " + std::to_string(kControlVersion));
        }
        if (!proven_ && size > kLongestBeforeProof) {
            throw ControlError("a frame of " + std::to_string(size) +
                               " bytes before the controller had proven itself");
        }
        if (in.size() - at - kHead < size) break;
        handle(static_cast<ControlType>(type), std::span(in).subspan(at + kHead, size));
        at += kHead + size;
    }
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(at));
    if (in.empty() && in.capacity() > 2 * kReadBytes) in.shrink_to_fit();
}

void Agent::handle(ControlType type, std::span<const std::uint8_t> payload) {
    FieldReader fields(payload);
    if (!proven_) {
        if (type != ControlType::kChallenge) throw ControlError("the controller did not prove itself");
        prove(fields);
        return;
    }
    switch (type) {
        case ControlType::kProgram:
            load(fields);
            return;
        case ControlType::kConnect:
            connect(fields);
            return;
        case ControlType::kPing: {
            timespec real;
            ::clock_gettime(CLOCK_REALTIME, &real);
            send(FrameWriter(ControlType::kPong)
                     .put(fields.take<std::uint64_t>())
                     .put(monotonic_now().value)
                     .put(std::int64_t{real.tv_sec} * 1'000'000'000 + real.tv_nsec)
                     .finish());
            return;
        }
        case ControlType::kStart: {
            const Nanos at{fields.take<std::int64_t>()};
            for (const auto& rank : ranks_) rank->start(at);
            running_ = true;
            return;
        }
        case ControlType::kAbort: {
            const std::string reason = fields.text();
            log_("told to stop: " + reason);
            for (const auto& rank : ranks_) rank->abort("stopped (" + reason + ")");
            return;
        }
        case ControlType::kBye:
            bye_ = true;
            return;
        default:
            throw ControlError("the controller sent a frame of type " +
                               std::to_string(static_cast<std::uint16_t>(type)) +
                               ", which only an agent may send");
    }
}

void Agent::prove(FieldReader& fields) {
    const auto nonce = fields.raw(kNonce);
    const auto proof = fields.raw(sizeof(Digest));
    const Digest expected = keyed(token_, "genie-controller", nonce_, nonce);
    if (!same_digest(expected, proof.first<32>())) {
        throw ControlError(
            "who answers there lacks this run's token: not the controller that started this agent");
    }
    proven_ = true;
    send(FrameWriter(ControlType::kProof).raw(keyed(token_, "genie-agent", nonce, nonce_)).finish());
}

void Agent::load(FieldReader& fields) {
    const auto rank = fields.take<std::uint32_t>();
    std::string event_path = fields.text();
    const auto blob = fields.raw(fields.take<std::uint32_t>());
    FailureReport report;
    try {
        Program program = parse_program(std::as_bytes(blob));
        if (program.header.rank != rank) {
            throw BadProgram("program blob: sent for rank " + std::to_string(rank) + ", it is for rank " +
                             std::to_string(program.header.rank));
        }
        for (const auto& other : ranks_) {
            if (other->rank() == rank) throw BadProgram("rank " + std::to_string(rank) + " got two programs");
        }
        RankThread::Options options;
        options.own_files = own_files_;
        options.log = log_;
        options.pace = pace_;
        ranks_.push_back(std::make_unique<RankThread>(std::move(program), std::move(event_path), token_,
                                                      *this, std::move(options)));
        return;
    } catch (const BadProgram& error) {
        report.code = Code::kProtocol;
        report.text = error.what();
    } catch (const Failure& failure) {
        report = failure.report();
    } catch (const std::bad_alloc&) {
        report.code = Code::kOutOfMemory;
        report.text =
            "out of memory while the program of " + std::to_string(blob.size()) + " bytes was loaded";
    }
    failed(rank, report);
    done(rank, Ending::kFailed, report.text);
}

void Agent::connect(FieldReader& fields) {
    std::vector<Endpoint> endpoints;
    for (auto left = fields.take<std::uint32_t>(); left > 0; --left) {
        Endpoint endpoint;
        endpoint.rank = fields.take<std::uint32_t>();
        endpoint.ipv4 = fields.take<std::uint32_t>();
        endpoint.port = fields.take<std::uint16_t>();
        fields.take<std::uint16_t>();
        const auto card = fields.raw(fields.take<std::uint32_t>());
        endpoint.card.assign(card.begin(), card.end());
        endpoints.push_back(endpoint);
    }
    for (const auto& rank : ranks_) rank->connect(endpoints);
}

void Agent::send(const std::vector<std::uint8_t>& frame) {
    outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
    write_out();
}

void Agent::write_out() {
    while (!outgoing_.empty()) {
        const ssize_t count =
            ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return;
            throw ControlError(with_reason("the controller went away", errno));
        }
        outgoing_.erase(outgoing_.begin(), outgoing_.begin() + count);
    }
}

void Agent::post(std::vector<std::uint8_t> frame) {
    {
        const std::lock_guard lock(posted_mutex_);
        posted_.push_back(std::move(frame));
    }
    const std::uint64_t one = 1;
    if (::write(posted_fd_.get(), &one, sizeof one) < 0) log_(with_reason("cannot wake the agent", errno));
}

void Agent::send_posted() {
    std::uint64_t times;
    if (::read(posted_fd_.get(), &times, sizeof times) < 0 && errno != EAGAIN) {
        throw ControlError(with_reason("cannot read an eventfd", errno));
    }
    std::deque<std::vector<std::uint8_t>> frames;
    {
        const std::lock_guard lock(posted_mutex_);
        frames.swap(posted_);
    }
    for (const auto& frame : frames) send(frame);
}

void Agent::send_progress() {
    for (const auto& rank : ranks_) {
        const EventHeader* header = rank->progress();
        if (header == nullptr) continue;
        send(FrameWriter(ControlType::kProgress)
                 .put(rank->rank())
                 .put(header->iterations_done.load(std::memory_order_relaxed))
                 .put(header->ops_done.load(std::memory_order_relaxed))
                 .put(header->bytes_sent.load(std::memory_order_relaxed))
                 .put(header->bytes_received.load(std::memory_order_relaxed))
                 .finish());
    }
}

void Agent::listening(std::uint32_t rank, const Opened& opened) {
    if (opened.card.size() > kMostCardBytes) {
        throw Failure(Code::kConnect, "the rank has " + std::to_string(opened.card.size()) +
                                          " bytes to tell its peers, more than " +
                                          std::to_string(kMostCardBytes));
    }
    post(FrameWriter(ControlType::kListening)
             .put(rank)
             .put(opened.port)
             .put(std::uint16_t{0})
             .put(static_cast<std::uint32_t>(opened.card.size()))
             .raw(opened.card)
             .text(opened.used)
             .finish());
}

void Agent::connected(std::uint32_t rank) { post(FrameWriter(ControlType::kConnected).put(rank).finish()); }

void Agent::failed(std::uint32_t rank, const FailureReport& report) {
    log_("rank " + std::to_string(rank) + ": " + report.text);
    post(FrameWriter(ControlType::kFailed)
             .put(rank)
             .put(static_cast<std::uint32_t>(report.code))
             .put(report.op)
             .put(report.iteration)
             .put(report.peer)
             .put(report.call_id)
             .put(report.waited_ns)
             .text(report.text)
             .finish());
}

void Agent::done(std::uint32_t rank, Ending ending, const std::string& message) {
    post(FrameWriter(ControlType::kDone)
             .put(rank)
             .put(static_cast<std::uint32_t>(ending))
             .text(message)
             .finish());
}

}  // namespace genie
