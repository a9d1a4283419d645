// Making sockets as the program wants them, and the meeting of ranks: who connects to whom, and greetings.
//
// The lower rank of a pair accepts, the higher connects, a connection a channel. Both sides prove that they
// hold the run's token (docs/formats.md §2). A stranger is closed and logged by its address.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "descriptor.h"
#include "program.h"
#include "units.h"

namespace genie {

using Token = std::array<std::uint8_t, 32>;
using Log = std::function<void(const std::string&)>;

// Where a rank listens; the address is in host order. The card is its transport's (runner.h).
struct Endpoint {
    std::uint32_t rank = kNone;
    std::uint32_t ipv4 = 0;
    std::uint16_t port = 0;
    std::vector<std::uint8_t> card = {};
};

// 10.0.0.1:4000
std::string address_text(std::uint32_t ipv4, std::uint16_t port);
sockaddr_in to_sockaddr(std::uint32_t ipv4, std::uint16_t port);

// Gives a socket the program's congestion control, if it has another. Throws Failure (kConnect).
void choose_congestion_control(int fd, const Program& program);

// A non-blocking TCP socket with the program's congestion control and buffers. Throws Failure (kConnect).
Descriptor make_socket(const Program& program);

// Connects and greets all peers of the program; returns a socket for each of its connections. Throws Failure
// (kConnect, naming the peer that was missing at the deadline; kAborted once `stopped` says so).
std::vector<Descriptor> meet(const Program& program, const Token& token, int listener, int stop_fd,
                             const std::vector<Endpoint>& endpoints, const Log& log,
                             const std::function<bool()>& stopped);

}  // namespace genie
