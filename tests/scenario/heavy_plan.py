"""gaccd plan at the size of GPT-2: minutes, and 3 GiB."""
import harness
import planned


class Large(planned.Planned):
    def test_124_million_parameters_take_what_was_planned(self):
        job, text = planned.gpt(768, 12, 256, 1)
        job["model"]["vocab"] = 50257
        job["data"]["format"] = "u16"
        self.check_measured(job, text, 1)


if __name__ == "__main__":
    harness.main()
