// genie-port: looks at the ports of a fabric and configures their ECN markers. See usage() for its commands.
//
// Started by genie.fabric.netns inside the fabric, and by faults. It changes nothing but the marker's maps.
#include <net/if.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>
#include <sstream>
#include <string_view>

#include "failure.h"
#include "marker.h"
#include "netlink.h"
#include "sample_file.h"

namespace genie {
namespace {

constexpr std::uint64_t kUnknown = UINT64_MAX;
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint64_t kLeastIntervalNs = 100'000;

constexpr std::string_view kUsage =
    "genie-port marker load --object FILE --pin DIR [< lines: IFINDEX RATE_BYTES_S LIMIT KMIN KMAX PMAX]\n"
    "genie-port marker get --map DIR --ifindex N | --interface NAME\n"
    "genie-port marker set --map DIR --ifindex N | --interface NAME [--enabled 0|1] [--kmin BYTES] [--kmax "
    "BYTES] "
    "[--pmax P]\n"
    "genie-port read [--map DIR] --port NAMESPACE_FILE:IFINDEX ...\n"
    "genie-port sample --out FILE --interval-ns N [--map DIR] --port NAMESPACE_FILE:IFINDEX ...\n"
    "\n"
    "DIR is where 'marker load' pinned the marker. get, set and read print JSON. sample runs until the end "
    "of its\n"
    "standard input or SIGTERM.\n";

class Usage : public Failure {
  public:
    using Failure::Failure;
};

// Options in the order given; every one must be taken, or it is an error.
class Options {
  public:
    Options(int argc, char** argv, int first) {
        for (int index = first; index < argc; index += 2) {
            if (index + 1 == argc || std::string_view(argv[index]).substr(0, 2) != "--")
                throw Usage("expected --option VALUE, found '" + std::string(argv[index]) + "'");
            given_.emplace_back(argv[index] + 2, argv[index + 1]);
        }
    }

    std::vector<std::string> take_all(std::string_view name) {
        std::vector<std::string> values;
        std::erase_if(given_, [&](const auto& item) {
            if (item.first != name) return false;
            values.push_back(item.second);
            return true;
        });
        return values;
    }

    std::optional<std::string> take(std::string_view name) {
        auto values = take_all(name);
        if (values.size() > 1) throw Usage("--" + std::string(name) + " is given twice");
        return values.empty() ? std::nullopt : std::optional(values.front());
    }

    std::string need(std::string_view name) {
        auto value = take(name);
        if (!value) throw Usage("--" + std::string(name) + " is missing");
        return *value;
    }

    void finish() const {
        if (!given_.empty()) throw Usage("no option --" + given_.front().first + " here");
    }

  private:
    std::vector<std::pair<std::string, std::string>> given_;
};

template <typename Number>
Number parse(std::string_view text, std::string_view what) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        throw Usage("expected a number for " + std::string(what) + ", found '" + std::string(text) + "'");
    return value;
}

std::uint64_t monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<std::uint64_t>(now.tv_nsec);
}

void check(const MarkerConfig& config) {
    if (config.kmin_bytes >= config.kmax_bytes) throw Usage("kmin must be below kmax");
}

void check(const MarkerShape& shape) {
    if (shape.rate_bytes_per_s == 0) throw Usage("the rate must be above 0");
    // Keeps every product in the program below 2^64.
    if (shape.limit_bytes > UINT64_C(1) << 33) throw Usage("the limit must be at most 8 GiB");
}

double parse_probability(std::string_view text) {
    const auto value = parse<double>(text, "pmax");
    if (!(value >= 0 && value <= 1)) throw Usage("pmax must lie between 0 and 1");
    return value;
}

int load_marker(Options options) {
    const std::string object = options.need("object"), directory = options.need("pin");
    options.finish();
    const Marker marker = Marker::load(object, directory);
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream fields(line);
        std::uint32_t ifindex = 0;
        MarkerConfig config = {};
        MarkerShape shape = {};
        std::string pmax;
        if (!(fields >> ifindex >> shape.rate_bytes_per_s >> shape.limit_bytes >> config.kmin_bytes >>
              config.kmax_bytes >> pmax))
            throw Usage("expected IFINDEX RATE LIMIT KMIN KMAX PMAX, found '" + line + "'");
        config.enabled = 1;
        config.pmax = to_fraction(parse_probability(pmax));
        check(config);
        check(shape);
        marker.add(ifindex, config, shape);
    }
    return 0;
}

void print_marker(std::uint32_t ifindex, const MarkerConfig& config, const MarkerShape& shape,
                  const MarkerState& state) {
    std::printf("{\"ifindex\": %" PRIu32
                ", \"enabled\": %s, \"rate_bytes_per_s\": %llu, \"limit_bytes\": %llu, \"kmin_bytes\": %llu, "
                "\"kmax_bytes\": %llu, \"pmax\": %.9g, ",
                ifindex, config.enabled != 0 ? "true" : "false", shape.rate_bytes_per_s, shape.limit_bytes,
                config.kmin_bytes, config.kmax_bytes, to_probability(config.pmax));
    std::printf(
        "\"packets\": %llu, \"bytes\": %llu, \"ect\": %llu, \"ce_arrived\": %llu, \"above_kmin\": %llu, "
        "\"ect_over\": %llu, \"not_ect_over\": %llu, \"ce_marked\": %llu, \"peak_bytes\": %llu, "
        "\"queue_bytes\": %" PRIu64 "}\n",
        state.packets, state.bytes, state.ect, state.ce_arrived, state.above_kmin, state.ect_over,
        state.not_ect_over, state.ce_marked, state.peak_bytes, queue_bytes(shape, state, monotonic_ns()));
}

// By number, or by its name in the namespace of this process.
std::uint32_t take_ifindex(Options& options) {
    const auto name = options.take("interface");
    if (!name) return parse<std::uint32_t>(options.need("ifindex"), "--ifindex");
    const unsigned found = ::if_nametoindex(name->c_str());
    if (found == 0) throw Failure("there is no interface " + *name);
    return found;
}

int show_or_set_marker(Options options, bool set) {
    const Marker marker = Marker::open(options.need("map"));
    const auto ifindex = take_ifindex(options);
    auto config = marker.config(ifindex);
    if (!config) throw Failure("interface " + std::to_string(ifindex) + " has no marker");
    if (set) {
        if (auto text = options.take("enabled")) {
            if (*text != "0" && *text != "1") throw Usage("--enabled is 0 or 1");
            config->enabled = *text == "1" ? 1 : 0;
        }
        auto take_bytes = [&](std::string_view name, __u64& field) {
            if (auto text = options.take(name)) field = parse<std::uint64_t>(*text, name);
        };
        take_bytes("kmin", config->kmin_bytes);
        take_bytes("kmax", config->kmax_bytes);
        if (auto text = options.take("pmax")) config->pmax = to_fraction(parse_probability(*text));
        options.finish();
        check(*config);
        marker.configure(ifindex, *config);
    }
    options.finish();
    print_marker(ifindex, marker.config(ifindex).value(), marker.shape(ifindex).value_or(MarkerShape{}),
                 marker.state(ifindex).value_or(MarkerState{}));
    return 0;
}

// A port's marker as it was a moment ago.
struct Marking {
    MarkerConfig config;
    MarkerShape shape;
    MarkerState state;
};

struct PortReference {
    std::size_t space;
    std::uint32_t ifindex;
};

// All ports asked for, and one reader a namespace.
class Ports {
  public:
    explicit Ports(Options& options) {
        std::map<std::string, std::size_t> known;
        for (const auto& text : options.take_all("port")) {
            const auto colon = text.rfind(':');
            if (colon == std::string::npos)
                throw Usage("expected NAMESPACE_FILE:IFINDEX, found '" + text + "'");
            const auto ifindex =
                parse<std::uint32_t>(std::string_view(text).substr(colon + 1), "an interface index");
            const auto [place, is_new] = known.try_emplace(text.substr(0, colon), spaces_.size());
            if (is_new) spaces_.push_back(std::make_unique<NamespaceReader>(place->first));
            ports_.push_back({place->second, ifindex});
        }
        if (ports_.empty()) throw Usage("--port is missing");
        if (auto directory = options.take("map")) marker_.emplace(Marker::open(*directory));
        options.finish();
    }

    std::size_t size() const { return ports_.size(); }

    // Calls visit(port number, counters, marking or nullptr) for each port.
    template <typename Visit>
    void read(Visit visit) {
        std::vector<const std::map<std::uint32_t, PortCounters>*> counters;
        for (auto& space : spaces_) counters.push_back(&space->read());
        for (std::size_t number = 0; number < ports_.size(); number++) {
            const auto& [space, ifindex] = ports_[number];
            const auto found = counters[space]->find(ifindex);
            if (found == counters[space]->end())
                throw Failure("no interface " + std::to_string(ifindex) + " in the namespace of port " +
                              std::to_string(number));
            const auto marking = read_marking(ifindex);
            visit(number, found->second, marking ? &*marking : nullptr);
        }
    }

    // A fault or an operator may change a port's shaper; the phantom queue has to drain as the real one does.
    void follow_shaper(std::size_t number, const PortCounters& port, const Marking& marking) const {
        const MarkerShape real{port.tbf_rate_bytes_per_s, port.tbf_limit_bytes};
        const bool same = real.rate_bytes_per_s == marking.shape.rate_bytes_per_s &&
                          real.limit_bytes == marking.shape.limit_bytes;
        if (real.rate_bytes_per_s != 0 && !same) marker_->follow(ports_[number].ifindex, real);
    }

  private:
    std::optional<Marking> read_marking(std::uint32_t ifindex) const {
        if (!marker_) return std::nullopt;
        const auto config = marker_->config(ifindex);
        const auto shape = marker_->shape(ifindex);
        const auto state = marker_->state(ifindex);
        if (!config || !shape || !state) return std::nullopt;
        return Marking{*config, *shape, *state};
    }

    std::vector<std::unique_ptr<NamespaceReader>> spaces_;
    std::vector<PortReference> ports_;
    std::optional<Marker> marker_;
};

int read_ports(Options options) {
    Ports ports(options);
    std::printf("{\"mono_ns\": %" PRIu64 ", \"ports\": [", monotonic_ns());
    ports.read([&](std::size_t number, const PortCounters& port, const Marking* marking) {
        std::printf("%s\n{\"tx_bytes\": %" PRIu64 ", \"tx_packets\": %" PRIu64 ", \"drops\": %" PRIu64
                    ", \"overlimits\": %" PRIu64 ", \"backlog_bytes\": %" PRIu64
                    ", \"backlog_packets\": %" PRIu64,
                    number == 0 ? "" : ",", port.tx_bytes, port.tx_packets, port.drops, port.overlimits,
                    port.backlog_bytes, port.backlog_packets);
        if (port.has_red) std::printf(", \"ce_marked\": %" PRIu64, port.red_marked);
        if (marking != nullptr)
            std::printf(
                ", \"ce_marked\": %llu, \"ect\": %llu, \"ce_arrived\": %llu, \"above_kmin\": %llu, "
                "\"ect_over\": %llu, \"not_ect_over\": %llu, \"marker_peak_bytes\": %llu, "
                "\"marker_enabled\": %d",
                marking->state.ce_marked, marking->state.ect, marking->state.ce_arrived,
                marking->state.above_kmin, marking->state.ect_over, marking->state.not_ect_over,
                marking->state.peak_bytes, marking->config.enabled != 0);
        std::printf("}");
    });
    std::printf("\n]}\n");
    return 0;
}

// A counter that others may restart from 0, made to rise for ever.
class Rising {
  public:
    std::uint64_t operator()(std::uint64_t value) {
        if (value < last_) before_ += last_;
        last_ = value;
        return before_ + value;
    }

  private:
    std::uint64_t last_ = 0;
    std::uint64_t before_ = 0;
};

struct PortHistory {
    Rising drops, overlimits, red_marked;
};

void take_sample(Ports& ports, std::vector<PortHistory>& histories, SampleFile& file) {
    ports.read([&](std::size_t number, const PortCounters& port, const Marking* marking) {
        auto& history = histories[number];
        SampleRecord record = {};
        const std::uint64_t now_ns = monotonic_ns();
        record.mono_ns = static_cast<std::int64_t>(now_ns);
        record.port = static_cast<std::uint32_t>(number);
        record.backlog_bytes = port.backlog_bytes;
        record.tx_bytes = port.tx_bytes;
        record.drops = history.drops(port.drops);
        record.overlimits = history.overlimits(port.overlimits);
        record.ce_marked = kUnknown;
        if (port.has_red) record.ce_marked = history.red_marked(port.red_marked);
        if (marking != nullptr) {
            record.ce_marked = marking->state.ce_marked;
            record.marker_queue_bytes = queue_bytes(marking->shape, marking->state, now_ns);
            ports.follow_shaper(number, port, *marking);
        }
        file.append(record);
    });
}

int sample_ports(Options options) {
    const std::string path = options.need("out");
    const auto interval_ns = parse<std::uint64_t>(options.need("interval-ns"), "--interval-ns");
    if (interval_ns < kLeastIntervalNs) throw Usage("--interval-ns must be at least 100000");
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    // Opened before the namespaces are entered: paths are the caller's, and a wrong one is told at once.
    sigset_t ending;
    ::sigemptyset(&ending);
    ::sigaddset(&ending, SIGTERM);
    ::sigaddset(&ending, SIGINT);
    ::sigprocmask(SIG_BLOCK, &ending, nullptr);
    const Descriptor signals(::signalfd(-1, &ending, SFD_CLOEXEC));
    const Descriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    if (!signals.valid() || !timer.valid()) fail_errno("timerfd");
    Ports ports(options);
    SampleFile file(path, static_cast<std::uint32_t>(ports.size()), interval_ns);
    std::vector<PortHistory> histories(ports.size());

    const timespec period{static_cast<time_t>(interval_ns / kNsPerSecond),
                          static_cast<long>(interval_ns % kNsPerSecond)};
    const itimerspec schedule{period, {0, 1}};
    if (::timerfd_settime(timer.get(), 0, &schedule, nullptr) != 0) fail_errno("timerfd_settime");
    std::array<pollfd, 3> watched{
        {{timer.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
    while (true) {
        if (::poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) fail_errno("poll");
        bool ends = watched[1].revents != 0;
        if (watched[2].revents != 0) {
            std::array<char, 256> ignored;
            ends = ends || ::read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0;
        }
        std::uint64_t expired = 0;
        // Ticks that were missed are not made up for: a sample says its own time.
        if (ends || (watched[0].revents != 0 && ::read(timer.get(), &expired, sizeof expired) > 0))
            take_sample(ports, histories, file);
        if (ends) return 0;
    }
}

int run(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    const std::string_view verb = argc > 2 ? argv[2] : "";
    if (command == "marker" && verb == "load") return load_marker(Options(argc, argv, 3));
    if (command == "marker" && verb == "get") return show_or_set_marker(Options(argc, argv, 3), false);
    if (command == "marker" && verb == "set") return show_or_set_marker(Options(argc, argv, 3), true);
    if (command == "read") return read_ports(Options(argc, argv, 2));
    if (command == "sample") return sample_ports(Options(argc, argv, 2));
    if (command == "--help") {
        std::fwrite(kUsage.data(), 1, kUsage.size(), stdout);
        return 0;
    }
    throw Usage("no command '" + std::string(command) + "'");
}

}  // namespace
}  // namespace genie

int main(int argc, char** argv) {
    try {
        return genie::run(argc, argv);
    } catch (const genie::Usage& error) {
        std::fprintf(stderr, "genie-port: %s\n%.*s", error.what(), static_cast<int>(genie::kUsage.size()),
                     genie::kUsage.data());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-port: %s\n", error.what());
        return 1;
    }
}
