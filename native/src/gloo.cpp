#include "gloo.h"

#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "clock.h"
#include "message_sizes.h"
#include "settings.h"
#include "sha256.h"

namespace genie {
namespace {

constexpr std::uint8_t kCardVersion = 1;

struct Greeting {
    std::uint8_t run_id[16];
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t channel;
    std::uint32_t zero;
    std::uint8_t proof[32];
};
static_assert(sizeof(Greeting) <= GlooLane::kGreetingBytes);

Digest prove(const Greeting& greeting, const Token& token) {
    return hmac_sha256(token, {reinterpret_cast<const std::uint8_t*>(&greeting), offsetof(Greeting, proof)});
}

// A card is a version, then for each peer its rank (u32), the size of an address (u16) and the address.
class CardReader {
  public:
    explicit CardReader(const std::vector<std::uint8_t>& card) : card_(card) {
        if (card.empty() || card[0] != kCardVersion) card_ = {};
    }

    // The address of the pair that the card's owner made for `rank`; empty if there is none.
    std::vector<char> address_for(std::uint32_t rank) const {
        for (std::size_t at = 1; at + 6 <= card_.size();) {
            std::uint32_t owner = 0;
            std::uint16_t size = 0;
            std::memcpy(&owner, card_.data() + at, sizeof owner);
            std::memcpy(&size, card_.data() + at + sizeof owner, sizeof size);
            at += 6;
            if (size > card_.size() - at) return {};
            const auto begin = card_.begin() + static_cast<std::ptrdiff_t>(at);
            if (owner == rank) return {begin, begin + size};
            at += size;
        }
        return {};
    }

  private:
    std::vector<std::uint8_t> card_;
};

template <class Integer>
void append(std::vector<std::uint8_t>& card, Integer value) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&value);
    card.insert(card.end(), bytes, bytes + sizeof value);
}

}  // namespace

GlooTransport::GlooTransport(const RankContext& context)
    : program_(context.program),
      token_(context.token),
      stop_fd_(context.stop_fd),
      send_bytes_(longest_message(program_, StepKind::kSend)),
      receive_bytes_(longest_message(program_, StepKind::kRecv)),
      sending_(program_.connections.size()) {
    Settings("gloo", program_.settings).done();
}

GlooTransport::~GlooTransport() {
    lanes_.clear();
    context_.reset();
    device_.reset();
}

Opened GlooTransport::open() {
    const ProgramHeader& header = program_.header;
    try {
        ::gloo::transport::tcp::attr attributes;
        const std::string where = address_text(header.listen_ipv4, 0);
        attributes.hostname = where.substr(0, where.find(':'));
        device_ = ::gloo::transport::tcp::CreateDevice(attributes);
        context_ = device_->createContext(static_cast<int>(header.rank), static_cast<int>(header.world));
        // Gloo waits five times as long for a connection.
        context_->setTimeout(std::chrono::milliseconds(200 * header.connect_timeout_s));
        Opened opened;
        opened.card = {kCardVersion};
        for (const Connection& connection : program_.connections) {
            auto& pair = context_->getPair(static_cast<int>(connection.peer));
            if (pair != nullptr) continue;  // of another channel
            const std::vector<char> address =
                context_->createPair(static_cast<int>(connection.peer))->address().bytes();
            append(opened.card, connection.peer);
            append(opened.card, static_cast<std::uint16_t>(address.size()));
            opened.card.insert(opened.card.end(), address.begin(), address.end());
        }
        return opened;
    } catch (const std::exception& error) {
        throw Failure(Code::kConnect, "gloo cannot listen: " + std::string(error.what()));
    }
}

void GlooTransport::connect_all(const std::vector<Endpoint>& endpoints,
                                const std::function<bool()>& stopped) {
    const Nanos limit =
        monotonic_now() + Nanos{std::int64_t{program_.header.connect_timeout_s} * 1'000'000'000};
    std::uint32_t done = kNone;
    std::vector<std::uint32_t> peers;
    for (const Connection& connection : program_.connections) peers.push_back(connection.peer);
    std::sort(peers.begin(), peers.end());  // in the same order everywhere, as Gloo's own meeting has it
    for (const std::uint32_t peer : peers) {
        if (std::exchange(done, peer) == peer) continue;
        const auto endpoint = std::find_if(endpoints.begin(), endpoints.end(),
                                           [&](const Endpoint& one) { return one.rank == peer; });
        std::vector<char> address;
        if (endpoint != endpoints.end())
            address = CardReader(endpoint->card).address_for(program_.header.rank);
        if (address.empty()) {
            throw Failure(Code::kConnect, "nobody said where rank " + std::to_string(peer) + " listens",
                          peer);
        }
        try {
            context_->getPair(static_cast<int>(peer))->connect(address);
        } catch (const std::exception& error) {
            throw Failure(Code::kConnect,
                          "gloo cannot connect to rank " + std::to_string(peer) + ": " + error.what(), peer);
        }
        if (stopped()) throw Failure(Code::kAborted, "stopped while it connected", peer);
    }
    make_lanes();
    greet_all(limit);
    for (const auto& lane : lanes_) lane->start();
}

void GlooTransport::make_lanes() {
    if (!program_.verify()) payload_.resize(send_bytes_ + receive_bytes_ + 1);
    for (std::uint32_t i = 0; i < program_.connections.size(); ++i) {
        GlooLane::Options options;
        options.connection = i;
        options.peer = program_.connections[i].peer;
        options.channel = program_.connections[i].channel;
        options.verify = program_.verify();
        options.send_bytes = send_bytes_;
        options.receive_bytes = receive_bytes_;
        options.shared = program_.verify() ? nullptr : payload_.data();
        lanes_.push_back(std::make_unique<GlooLane>(options, *context_, arrivals_));
    }
}

void GlooTransport::greet_all(Nanos limit) {
    std::uint32_t i = 0;
    try {
        for (; i < lanes_.size(); ++i) {
            Greeting greeting{};
            std::memcpy(greeting.run_id, program_.header.run_id, sizeof greeting.run_id);
            greeting.from = program_.header.rank;
            greeting.to = program_.connections[i].peer;
            greeting.channel = program_.connections[i].channel;
            const Digest proof = prove(greeting, token_);
            std::copy(proof.begin(), proof.end(), greeting.proof);
            lanes_[i]->offer(&greeting, sizeof greeting);
        }
        for (i = 0; i < lanes_.size(); ++i) {
            const Connection& connection = program_.connections[i];
            Greeting greeting{};
            const std::int64_t left = std::max<std::int64_t>(1, (limit - monotonic_now()).value / 1'000'000);
            if (!lanes_[i]->await(&greeting, sizeof greeting, std::chrono::milliseconds(left)) ||
                !same_digest(prove(greeting, token_), greeting.proof) || greeting.from != connection.peer ||
                greeting.to != program_.header.rank || greeting.channel != connection.channel ||
                std::memcmp(greeting.run_id, program_.header.run_id, sizeof greeting.run_id) != 0) {
                throw Failure(Code::kConnect,
                              "rank " + std::to_string(connection.peer) +
                                  " was refused: it lacks this run's token or greets another rank",
                              connection.peer);
            }
        }
    } catch (const Failure&) {
        throw;
    } catch (const std::exception& error) {
        const std::uint32_t peer = program_.connections[i].peer;
        throw Failure(Code::kConnect, "rank " + std::to_string(peer) + " did not greet: " + error.what(),
                      peer);
    }
}

void GlooTransport::gather(Nanos now, Nanos until) {
    const std::int64_t left = until == Nanos::never() ? std::int64_t{3'600'000'000'000}
                                                      : std::max<std::int64_t>(0, until.value - now.value);
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    pollfd descriptors[2] = {{arrivals_.fd(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    if (::ppoll(descriptors, 2, &timeout, nullptr) < 0 && errno != EINTR) {
        fail_errno(Code::kInternal, "cannot wait for gloo");
    }
    arrivals_.take(reports_);
}

bool GlooTransport::poll(Sink& sink, Nanos /*now*/) {
    const std::vector<GlooReport> reports = std::exchange(reports_, {});
    for (const GlooReport& report : reports) {
        const std::uint32_t connection = report.connection;
        switch (report.kind) {
            case GlooReport::Kind::kMessage:
                moved_ += report.frame.bytes + 1;
                if (sink.on_header(connection, report.frame, report.times.first))
                    sink.on_message(connection, report.times.last);
                break;
            case GlooReport::Kind::kCredit:
                tell_credit(report, sink);
                break;
            case GlooReport::Kind::kSent:
                tell_sent(report, sink);
                break;
            case GlooReport::Kind::kCreditSent:
                --unsent_;
                break;
            case GlooReport::Kind::kLost:
                sink.on_lost(connection, report.code, report.text);
                break;
        }
    }
    return !reports.empty();
}

void GlooTransport::tell_sent(const GlooReport& report, Sink& sink) {
    Sending& sending = sending_[report.connection];
    moved_ += report.frame.bytes + 1;
    --unsent_;
    ++sending.sent;
    sending.now = false;
    sink.on_sent(report.connection, {sending.first, report.times.last});
    if (sending.credit == 0) return;
    sink.on_credit(report.connection, std::exchange(sending.credit, 0), report.times.last);
}

void GlooTransport::tell_credit(const GlooReport& report, Sink& sink) {
    Sending& sending = sending_[report.connection];
    moved_ += 1;
    if (sending.now && report.frame.bytes == sending.sent + 1) {
        sending.credit = report.frame.bytes;  // until our own thread says that it sent that message
    } else {
        sink.on_credit(report.connection, report.frame.bytes, report.times.first);
    }
}

bool GlooTransport::send(std::uint32_t connection, const Frame& frame, SendTimes&) {
    sending_[connection].first = monotonic_now();
    sending_[connection].now = true;
    ++unsent_;
    lanes_[connection]->send(frame);
    return false;
}

void GlooTransport::send_credit(std::uint32_t connection, std::uint64_t messages) {
    if (lanes_[connection]->send_credit(messages)) ++unsent_;
}

void GlooTransport::break_connection(std::uint32_t connection) {
    context_->getPair(static_cast<int>(program_.connections[connection].peer))->close();
}

}  // namespace genie
