"""The attacks of test_attacks.py, twenty times as long."""
import attacks
import harness
import test_attacks


class LongAttacks(test_attacks.Attacks):
    def test_every_attack_at_every_address(self):
        self.under_attack(attacks.How(scale=20, seconds=120))


if __name__ == "__main__":
    harness.main()
