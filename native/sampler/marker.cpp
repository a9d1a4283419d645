#include "marker.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "failure.h"

namespace genie {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr int kBpfMachine = 247;  // EM_BPF, missing from older elf.h

struct MapDefinition {
    std::uint32_t type, key_size, value_size, max_entries, flags;
};

std::uint64_t pointer(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

int bpf(int command, union bpf_attr& attributes) {
    return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

void set_name(char (&field)[BPF_OBJ_NAME_LEN], const std::string& name) {
    std::copy_n(name.begin(), std::min<std::size_t>(name.size(), BPF_OBJ_NAME_LEN - 1), field);
}

Descriptor create_map(const std::string& name, const MapDefinition& definition) {
    union bpf_attr attributes = {};
    attributes.map_type = definition.type;
    attributes.key_size = definition.key_size;
    attributes.value_size = definition.value_size;
    attributes.max_entries = definition.max_entries;
    attributes.map_flags = definition.flags;
    set_name(attributes.map_name, name);
    Descriptor map(bpf(BPF_MAP_CREATE, attributes));
    if (!map.valid()) fail_errno("create BPF map " + name);
    return map;
}

void pin(const Descriptor& object, const std::string& path) {
    union bpf_attr attributes = {};
    attributes.pathname = pointer(path.c_str());
    attributes.bpf_fd = static_cast<std::uint32_t>(object.get());
    if (bpf(BPF_OBJ_PIN, attributes) != 0) fail_errno("pin " + path);
}

Descriptor open_pinned(const std::string& path) {
    union bpf_attr attributes = {};
    attributes.pathname = pointer(path.c_str());
    Descriptor object(bpf(BPF_OBJ_GET, attributes));
    if (!object.valid()) fail_errno("open " + path);
    return object;
}

// An ELF file of class 64, little-endian, machine BPF; every access is checked against the file's size.
class ObjectFile {
  public:
    explicit ObjectFile(const std::string& path) : path_(path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw Failure(path + ": cannot be read");
        bytes_.assign(std::istreambuf_iterator<char>(file), {});
        const auto& header = at<Elf64_Ehdr>(0);
        if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
            header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != kBpfMachine)
            throw Failure(path + ": expected a little-endian BPF object file");
    }

    template <typename T>
    const T& at(std::uint64_t offset) const {
        if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T))
            throw Failure(path_ + ": cut short");
        return *reinterpret_cast<const T*>(bytes_.data() + offset);
    }

    // The section called `name`; throws if there is none.
    const Elf64_Shdr& section(const std::string& name) const {
        const auto& header = at<Elf64_Ehdr>(0);
        const auto& names = section(header.e_shstrndx);
        for (unsigned index = 0; index < header.e_shnum; index++)
            if (text(names, section(index).sh_name) == name) return section(index);
        throw Failure(path_ + ": no section '" + name + "'");
    }

    const Elf64_Shdr& section(unsigned index) const {
        const auto& header = at<Elf64_Ehdr>(0);
        if (index >= header.e_shnum) throw Failure(path_ + ": no section " + std::to_string(index));
        return at<Elf64_Shdr>(header.e_shoff + index * sizeof(Elf64_Shdr));
    }

    unsigned index_of(const Elf64_Shdr& wanted) const {
        const auto& header = at<Elf64_Ehdr>(0);
        return static_cast<unsigned>(
            (reinterpret_cast<const char*>(&wanted) - bytes_.data() - header.e_shoff) / sizeof(Elf64_Shdr));
    }

    std::string text(const Elf64_Shdr& strings, std::uint64_t offset) const {
        std::string result;
        for (std::uint64_t place = strings.sh_offset + offset; at<char>(place) != 0; place++)
            result.push_back(at<char>(place));
        return result;
    }

    const std::string& path() const { return path_; }

  private:
    std::string path_;
    std::vector<char> bytes_;
};

Descriptor load_program(const std::vector<bpf_insn>& code, const std::string& license) {
    std::vector<char> log(1 << 16);
    union bpf_attr attributes = {};
    attributes.prog_type = BPF_PROG_TYPE_SCHED_CLS;
    attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
    attributes.insns = pointer(code.data());
    attributes.license = pointer(license.c_str());
    set_name(attributes.prog_name, "genie_mark");
    Descriptor program(bpf(BPF_PROG_LOAD, attributes));
    if (program.valid()) return program;
    const int reason = errno;
    // Once more for the verifier's opinion: asked for at once, a long log would itself fail a good load.
    attributes.log_level = 1;
    attributes.log_buf = pointer(log.data());
    attributes.log_size = static_cast<std::uint32_t>(log.size());
    Descriptor again(bpf(BPF_PROG_LOAD, attributes));
    if (again.valid()) return again;
    std::string words(log.data());
    if (words.size() > 600) words = "…" + words.substr(words.size() - 600);
    errno = reason;
    fail_errno("load the marking program" + (words.empty() ? "" : " (verifier: " + words + ")"));
}

}  // namespace

Marker Marker::load(const std::string& object, const std::string& directory) {
    // Kernels before 5.11 charge maps to this limit.
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_MEMLOCK, &unlimited);

    const ObjectFile file(object);
    const auto& maps = file.section("maps");
    const auto& code_section = file.section("tc");
    const auto& relocations = file.section(".reltc");
    const auto& symbols = file.section(relocations.sh_link);
    const auto& strings = file.section(symbols.sh_link);
    const unsigned maps_index = file.index_of(maps);

    std::map<std::string, Descriptor> made;
    std::map<std::uint64_t, int> map_at;
    for (std::uint64_t place = 0; place < symbols.sh_size; place += sizeof(Elf64_Sym)) {
        const auto& symbol = file.at<Elf64_Sym>(symbols.sh_offset + place);
        if (symbol.st_shndx != maps_index || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
        const std::string name = file.text(strings, symbol.st_name);
        auto map = create_map(name, file.at<MapDefinition>(maps.sh_offset + symbol.st_value));
        map_at[symbol.st_value] = map.get();
        made.emplace(name, std::move(map));
    }
    for (const auto* name : {"config", "shape", "state"})
        if (!made.contains(name)) throw Failure(object + ": expected a map '" + name + "'");

    std::vector<bpf_insn> code;
    for (std::uint64_t place = 0; place < code_section.sh_size; place += sizeof(bpf_insn))
        code.push_back(file.at<bpf_insn>(code_section.sh_offset + place));
    for (std::uint64_t place = 0; place < relocations.sh_size; place += sizeof(Elf64_Rel)) {
        const auto& relocation = file.at<Elf64_Rel>(relocations.sh_offset + place);
        const auto& symbol =
            file.at<Elf64_Sym>(symbols.sh_offset + ELF64_R_SYM(relocation.r_info) * sizeof(Elf64_Sym));
        const std::uint64_t index = relocation.r_offset / sizeof(bpf_insn);
        if (symbol.st_shndx != maps_index || !map_at.contains(symbol.st_value) || index >= code.size())
            throw Failure(object + ": a relocation that is not to a map");
        code[index].src_reg = BPF_PSEUDO_MAP_FD;
        code[index].imm = map_at[symbol.st_value];
    }
    const auto& license = file.section("license");
    const Descriptor program = load_program(code, file.text(license, 0));
    pin(program, directory + "/marker");
    for (const auto& [name, map] : made) pin(map, directory + "/" + name);
    return Marker(std::move(made.at("config")), std::move(made.at("shape")), std::move(made.at("state")));
}

Marker Marker::open(const std::string& directory) {
    return Marker(open_pinned(directory + "/config"), open_pinned(directory + "/shape"),
                  open_pinned(directory + "/state"));
}

namespace {

template <typename Value>
std::optional<Value> look_up(const Descriptor& map, std::uint32_t ifindex) {
    Value value = {};
    union bpf_attr attributes = {};
    attributes.map_fd = static_cast<std::uint32_t>(map.get());
    attributes.key = pointer(&ifindex);
    attributes.value = pointer(&value);
    if (bpf(BPF_MAP_LOOKUP_ELEM, attributes) == 0) return value;
    if (errno == ENOENT) return std::nullopt;
    fail_errno("read the marker of interface " + std::to_string(ifindex));
}

template <typename Value>
void update(const Descriptor& map, std::uint32_t ifindex, const Value& value) {
    union bpf_attr attributes = {};
    attributes.map_fd = static_cast<std::uint32_t>(map.get());
    attributes.key = pointer(&ifindex);
    attributes.value = pointer(&value);
    attributes.flags = BPF_ANY;
    if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0)
        fail_errno("set the marker of interface " + std::to_string(ifindex));
}

}  // namespace

std::optional<MarkerConfig> Marker::config(std::uint32_t ifindex) const {
    return look_up<MarkerConfig>(config_, ifindex);
}

std::optional<MarkerShape> Marker::shape(std::uint32_t ifindex) const {
    return look_up<MarkerShape>(shape_, ifindex);
}

std::optional<MarkerState> Marker::state(std::uint32_t ifindex) const {
    return look_up<MarkerState>(state_, ifindex);
}

void Marker::add(std::uint32_t ifindex, const MarkerConfig& config, const MarkerShape& shape) const {
    update(state_, ifindex, MarkerState{});
    follow(ifindex, shape);
    configure(ifindex, config);
}

void Marker::configure(std::uint32_t ifindex, const MarkerConfig& config) const {
    update(config_, ifindex, config);
}

void Marker::follow(std::uint32_t ifindex, const MarkerShape& shape) const { update(shape_, ifindex, shape); }

std::uint64_t queue_bytes(const MarkerShape& shape, const MarkerState& state, std::uint64_t now_ns) {
    if (state.finish_ns <= now_ns || shape.rate_bytes_per_s == 0) return 0;
    // The rate may have been raised since the packets came in, and the queue is never longer than the limit.
    const std::uint64_t longest_ns = shape.limit_bytes * kNsPerSecond / shape.rate_bytes_per_s;
    return std::min<std::uint64_t>(state.finish_ns - now_ns, longest_ns) * shape.rate_bytes_per_s /
           kNsPerSecond;
}

std::uint32_t to_fraction(double probability) {
    return static_cast<std::uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
}

double to_probability(std::uint32_t fraction) { return fraction == UINT32_MAX ? 1.0 : fraction * 0x1p-32; }

}  // namespace genie
